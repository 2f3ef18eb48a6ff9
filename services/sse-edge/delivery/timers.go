package delivery

import "time"

// timers is a heap of streams by what is due next.
type timers []*Stream

func (t timers) Len() int { return len(t) }

func (t timers) Less(i, j int) bool { return t[i].due().Before(t[j].due()) }

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i, j
}

func (t *timers) Push(x any) {
	st := x.(*Stream) //nolint:errcheck,forcetypeassert // heap's contract
	st.timer = len(*t)
	*t = append(*t, st)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	st := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return st
}

// wait returns how long there is nothing to do.
func (t timers) wait(now time.Time) time.Duration {
	if len(t) == 0 {
		return time.Hour
	}
	return max(t[0].due().Sub(now), 0)
}
