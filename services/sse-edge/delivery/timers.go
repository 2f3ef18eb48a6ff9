package delivery

import "time"

// timers is a heap of connections by the time at which they are due.
type timers []*Connection

func (t timers) Len() int { return len(t) }

func (t timers) Less(i, j int) bool { return t[i].due().Before(t[j].due()) }

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i, j
}

func (t *timers) Push(x any) {
	c := x.(*Connection) //nolint:errcheck,forcetypeassert // heap's contract
	c.timer = len(*t)
	*t = append(*t, c)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return c
}

// wait returns the time until the next connection is due.
func (t timers) wait(now time.Time) time.Duration {
	if len(t) == 0 {
		return time.Hour
	}
	return max(t[0].due().Sub(now), 0)
}
