package bridge

// enter takes a place among the open calls of the upstream; leave gives it back.
func (s *Service) enter() bool {
	select {
	case s.open <- struct{}{}:
		s.metrics.calls.Inc()
		return true
	default:
		return false
	}
}

func (s *Service) leave() {
	<-s.open
	s.metrics.calls.Dec()
}

// enterProcess takes a place among the processes; leaveProcess gives it back.
func (s *Service) enterProcess() bool {
	select {
	case s.running <- struct{}{}:
		s.metrics.processes.Inc()
		return true
	default:
		return false
	}
}

func (s *Service) leaveProcess() {
	<-s.running
	s.metrics.processes.Dec()
}
