package system

// Serve serves what the arguments of this program ask for, as StartSelf passes them, and returns
// only errors then. It returns nil at once for any other arguments.
func Serve(args []string) error {
	if len(args) == 0 {
		return nil
	}
	switch kind := args[0]; {
	case len(args) == 1 && (kind == RawEach || kind == rawBatch || kind == RawReplay):
		return serveRaw(kind)
	case len(args) == 1 && kind == bareFiber:
		return serveFiber()
	case len(args) == 2 && (kind == BareJetStream || kind == BareNATS || kind == BareCluster):
		return serveJetStream(kind, args[1])
	}
	return nil
}
