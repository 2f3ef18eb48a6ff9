package measure

import "io"

// Case runs a case several times, prints its figures, and compares them with the bars. It ends
// with the first error.
func Case(w io.Writer, name, what string, times int, run func() (Figures, error)) ([]Verdict, error) {
	r := newReport(name, what)
	err := r.repeat(times, run)
	r.print(w)
	return r.judge(), err
}

func (r *report) repeat(times int, run func() (Figures, error)) error {
	for range times {
		before, err := readMachineTime()
		if err != nil {
			return err
		}
		f, err := run()
		if err != nil {
			return err
		}
		after, err := readMachineTime()
		if err != nil {
			return err
		}
		f.Remark("%s", after.others(before))
		r.add(f)
	}
	return nil
}
