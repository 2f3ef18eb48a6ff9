// Package mcp measures tool calls: the time that edge, log and bridge add to them, and the
// messages that arrive while parts fail. It has the MCP server and the clients for that.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/bench/measure"
	"rejoin/bench/system"
)

const (
	mcpWarmUp  = 200
	mcpInTurn  = 2000 // calls, one after the other
	mcpAtOnce  = 16   // clients, each one call after the other
	mcpTime    = 5 * time.Second
	mcpOnly    = "alone_"
	mcpThrough = ""
	mcpEarlier = "earlier_" // before a server of 2025-11-25
)

// Calls measures a tool call that returns at once: through edge, log and bridge, all in
// the standalone program, beside the MCP server alone.
func Calls(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	server, err := startMCPServer(ctx)
	if err != nil {
		return f, err
	}
	defer server.close()
	s, err := system.Start(ctx, p, "", "--upstream", server.url)
	if err != nil {
		return f, err
	}
	defer s.Stop()
	urls := map[string]string{mcpOnly: server.url, mcpThrough: s.Edge + "/mcp"}
	h := mcpHTTP()
	defer h.CloseIdleConnections()
	clients := map[string]*mcpClient{}
	for prefix, url := range urls {
		if clients[prefix], err = openMCP(ctx, h, url); err != nil {
			return f, fmt.Errorf("%scalls: %w", prefix, err)
		}
	}
	took, err := mcpLatencies(ctx, clients)
	if err != nil {
		return f, err
	}
	for _, prefix := range []string{mcpOnly, mcpThrough} {
		f.AddLatencies(prefix, took[prefix])
	}
	f.Add("added_p50_ms", f.Value(mcpThrough+"p50_ms")-f.Value(mcpOnly+"p50_ms"))
	for _, prefix := range []string{mcpOnly, mcpThrough} {
		rate, err := mcpRate(ctx, urls[prefix], mcpAtOnce, mcpTime)
		if err != nil {
			return f, fmt.Errorf("%scalls: %w", prefix, err)
		}
		f.Add(prefix+"calls_per_s", rate)
	}
	f.Ratio("calls_vs_alone", "calls_per_s", mcpOnly+"calls_per_s")
	return f, nil
}

// Stateless measures a tool call of a client of 2026-07-28 that returns at once, before a server of
// that revision and before one of 2025-11-25, beside a call at each of these servers alone.
func Stateless(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	server, err := startMCPServer(ctx)
	if err != nil {
		return f, err
	}
	defer server.close()
	h := mcpHTTP()
	defer h.CloseIdleConnections()
	clients := map[string]*mcpClient{mcpOnly: statelessMCP(h, server.url+statelessPath)}
	if clients[mcpEarlier+mcpOnly], err = openMCP(ctx, h, server.url); err != nil {
		return f, err
	}
	stateless, err := system.Start(ctx, p, "", "--upstream", server.url+statelessPath)
	if err != nil {
		return f, err
	}
	defer stateless.Stop()
	earlier, err := system.Start(ctx, p, "", "--upstream", server.url)
	if err != nil {
		return f, err
	}
	defer earlier.Stop()
	clients[mcpThrough], clients[mcpEarlier] = statelessMCP(h, stateless.Edge+"/mcp"), statelessMCP(h, earlier.Edge+"/mcp")
	took, err := mcpLatencies(ctx, clients)
	if err != nil {
		return f, err
	}
	for _, prefix := range []string{mcpThrough, mcpEarlier} {
		f.AddLatencies(prefix+mcpOnly, took[prefix+mcpOnly])
		f.AddLatencies(prefix, took[prefix])
		f.Add(prefix+"added_p50_ms", f.Value(prefix+"p50_ms")-f.Value(prefix+mcpOnly+"p50_ms"))
	}
	return f, nil
}

// mcpLatencies has each client call in turn, so that other work of the machine affects all.
func mcpLatencies(ctx context.Context, clients map[string]*mcpClient) (map[string][]time.Duration, error) {
	took := map[string][]time.Duration{}
	for n := range mcpWarmUp + mcpInTurn {
		for prefix, c := range clients {
			begun := time.Now()
			if err := c.call(ctx, "now", "{}", nil); err != nil {
				return nil, fmt.Errorf("%scall: %w", prefix, err)
			}
			if n >= mcpWarmUp {
				took[prefix] = append(took[prefix], time.Since(begun))
			}
		}
	}
	return took, nil
}

// mcpRate returns how many calls a second return.
func mcpRate(ctx context.Context, url string, clients int, d time.Duration) (float64, error) {
	h := mcpHTTP()
	defer h.CloseIdleConnections()
	all := make([]*mcpClient, clients)
	for i := range all {
		var err error
		if all[i], err = openMCP(ctx, h, url); err != nil {
			return 0, err
		}
	}
	var returned atomic.Int64
	errs := make([]error, clients)
	var calling sync.WaitGroup
	begun := time.Now()
	for i, c := range all {
		calling.Go(func() {
			for errs[i] == nil && time.Since(begun) < d {
				if errs[i] = c.call(ctx, "now", "{}", nil); errs[i] == nil {
					returned.Add(1)
				}
			}
		})
	}
	calling.Wait()
	return float64(returned.Load()) / time.Since(begun).Seconds(), errors.Join(errs...)
}
