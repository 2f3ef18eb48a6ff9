package janitor

import "context"

// noteChecked has the log say that all of the partition was read in its generation, and up
// to which sequence entries are missing that nothing explains. Edges need to know it also
// while no janitor is there.
func (p *partition) noteChecked(ctx context.Context) error {
	state, _ := p.log.State(p.number)
	generation, damaged, known := "", uint64(0), false
	p.with(func(l *ledger) {
		if n := len(l.generations); n > 0 && l.exact() && p.compared(state) {
			generation, damaged, known = l.generations[n-1].ID, l.damaged, true
		}
	})
	// What was missing once stays known when the floor passes it: a birth that was written again
	// since may say of its stream less than there was.
	damaged = max(damaged, state.Damaged)
	if !known || generation != state.Generation().ID || state.Checked() && state.Damaged == damaged {
		return nil
	}
	return p.log.SetChecked(ctx, p.number, generation, damaged)
}
