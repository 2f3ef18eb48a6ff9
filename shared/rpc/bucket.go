package rpc

// The key-value buckets of MCP. Besides who keeps them, the janitor knows them, which
// changes their replicas with the log's.
const (
	// AttachBucket is the edges': which one has the newest connection of a stream.
	AttachBucket = "MCP_ATTACH"
	// CallsBucket is the bridges': open calls, and how far their streams are.
	CallsBucket = "MCP_CALLS"
)
