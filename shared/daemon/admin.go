package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// adminStopTimeout bounds the wait for admin requests that are being
// answered when the admin port stops; then they are cut off.
const adminStopTimeout = 5 * time.Second

// openAdmin opens the admin port at cfg.AdminAddr (port 0: any free one) and returns the address that it is
// bound to, and the function that serves it, once, as an [Actor] does:
//
//	/livez         200 for as long as the program runs
//	/readyz        200 or 503, with a [Readiness]
//	/metrics       the metrics, in Prometheus' formats
//	/debug/pprof/  profiles, when asked for
//
// It has no access control: keep it off public networks. Requests for hosts that are neither
// addresses, nor names without a dot, nor the machine's own, nor in AdminHosts get 403.
func openAdmin(cfg Config, env Env) (addr net.Addr, run func(context.Context) error, err error) {
	ln, err := Listen(cfg.AdminAddr, "--admin-addr")
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // fails when the client has disconnected
	})
	mux.HandleFunc("GET /readyz", env.Health.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(env.Metrics, promhttp.HandlerOpts{}))
	if cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	server := &http.Server{
		Handler:           checkHost(cfg, mux),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      5 * time.Minute, // the request sets the time of a profile
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(env.Log.Handler(), slog.LevelWarn),
	}
	return ln.Addr(), func(ctx context.Context) error { return serveAdmin(ctx, server, ln) }, nil
}

// serveAdmin serves until ctx ends, then ends the profiles that are being taken and
// waits up to 5 s for other requests. It returns nil after an end by ctx.
func serveAdmin(ctx context.Context, server *http.Server, ln net.Listener) error {
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminStopTimeout)
	defer cancel()
	err := server.Shutdown(grace)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}
