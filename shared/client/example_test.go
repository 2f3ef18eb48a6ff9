package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"

	"rejoin/shared/client"
)

func ExampleSubscriber() {
	// This edge holds a closed stream of three messages, and loses the connection
	// after the first one.
	edge := &fakeEdge{closed: true, faults: []edgeFault{{EndAfter: 1}}}
	edge.publish(counts(3)...)
	server := httptest.NewServer(edge)
	defer server.Close()

	subscriber, err := client.NewSubscriber(client.SubscriberConfig{
		URL: server.URL, Session: "demo", Stream: "main",
		Retry: 1, MaxRetry: 1, // so that the example does not take seconds
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for event, err := range subscriber.Events(context.Background()) {
		if err != nil {
			fmt.Println(err) // refused, or the context has ended
			return
		}
		if event.Kind == client.KindGap {
			fmt.Println("events are missing:", event.Gap.Reason)
			continue
		}
		fmt.Println(event.ID, string(event.Message))
	}
	fmt.Println("the stream is closed")
	// Output:
	// main_0000000_1 {"jsonrpc":"2.0","method":"count","params":{"n":1}}
	// main_0000000_2 {"jsonrpc":"2.0","method":"count","params":{"n":2}}
	// main_0000000_3 {"jsonrpc":"2.0","method":"count","params":{"n":3}}
	// the stream is closed
}

// A program that saves the cursor after its work resumes there after a restart.
func ExampleSubscriber_Cursor() {
	edge := &fakeEdge{closed: true}
	edge.publish(counts(3)...)
	server := httptest.NewServer(edge)
	defer server.Close()

	saved := "" // in a file or a database
	for life := range 2 {
		subscriber, err := client.NewSubscriber(client.SubscriberConfig{
			URL: server.URL, Session: "demo", Stream: "main", After: saved,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		for event, err := range subscriber.Events(context.Background()) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("life", life, "works on", event.ID)
			saved = event.Cursor
			if life == 0 {
				break
			}
		}
	}
	// Output:
	// life 0 works on main_0000000_1
	// life 1 works on main_0000000_2
	// life 1 works on main_0000000_3
}

func ExamplePublisher() {
	server := httptest.NewServer(&fakeIngest{})
	defer server.Close()
	ctx := context.Background()

	publisher, err := client.NewPublisher(client.PublisherConfig{URL: server.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	var results []*client.Result
	for n := range 3 {
		result, err := publisher.Publish(ctx, client.Message{
			Session: "demo", Stream: "main", Data: fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"count","params":{"n":%d}}`, n),
		})
		if err != nil {
			fmt.Println(err) // not a message, or the context has ended while the buffer was full
			return
		}
		results = append(results, result)
	}
	if err := publisher.Close(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for _, result := range results {
		stored, err := result.Wait(ctx)
		switch {
		case errors.Is(err, client.ErrUnknown):
			fmt.Println("it may be stored, or not:", err)
		case err != nil:
			fmt.Println("it is not stored:", err)
		default:
			fmt.Println("stored as", stored.ID)
		}
	}
	// Output:
	// stored as s_0000000_1
	// stored as s_0000000_2
	// stored as s_0000000_3
}

// A key of the caller's own makes a repetition by the caller harmless as well.
func ExamplePublisher_PublishAndWait() {
	server := httptest.NewServer(&fakeIngest{})
	defer server.Close()
	ctx := context.Background()

	publisher, err := client.NewPublisher(client.PublisherConfig{URL: server.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = publisher.Close(ctx) }() // nothing is under way any more
	for range 2 {
		stored, err := publisher.PublishAndWait(ctx, client.Message{
			Session: "demo", Stream: "main", Key: "order 4711", Data: []byte(`{"jsonrpc":"2.0","method":"paid"}`),
		})
		fmt.Println(stored.ID, stored.Duplicate, err)
	}
	// Output:
	// s_0000000_1 false <nil>
	// s_0000000_1 true <nil>
}
