package mcpstore_test

import (
	"context"
	"log"
	"log/slog"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"rejoin/shared/backend"
	"rejoin/shared/mcpstore"
)

// A server of the SDK whose clients may lose their connection, or whose NATS may restart,
// in the middle of a call.
func Example() {
	b, err := backend.Open(context.Background(), backend.Config{NATSURL: "nats://127.0.0.1:4222"}, "my-server", slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	store := mcpstore.New(b, mcpstore.Config{})
	defer store.Close()

	server := mcp.NewServer(&mcp.Implementation{Name: "my-server", Version: "1.0.0"}, nil)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{EventStore: store})
	if err := http.ListenAndServe("127.0.0.1:8000", handler); err != nil {
		log.Print(err)
	}
}
