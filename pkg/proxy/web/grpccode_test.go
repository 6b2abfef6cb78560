package web

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// tokenless is a gate that lets nobody pass.
type tokenless struct{}

func (tokenless) Ready() error { return nil }

func (tokenless) PassesTarget() func([]byte) bool { return nil }

func (tokenless) Wrap(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply.Refuse(w, r, http.StatusUnauthorized, reply.Unauthenticated, "a token is required")
	})
}

// What a call ended with is counted by its code, and logged where it is a fault: HTTP's status is 200 all the same.
func TestGRPCCodes(t *testing.T) {
	answer := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/grpc")
		_ = http.NewResponseController(w).Flush()
	}
	status := func(code int) http.HandlerFunc { // in the trailers
		return func(w http.ResponseWriter, _ *http.Request) {
			answer(w)
			_, _ = io.WriteString(w, "message")
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(code))
		}
	}
	only := func(code string) http.HandlerFunc { // nothing but trailers
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", code)
		}
	}
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	const patience = 50 * time.Millisecond
	tests := map[string]struct {
		backend http.HandlerFunc
		gate    Gate
		kind    string // Content-Type; default gRPC's
		leaves  bool   // the client, when it has waited for its patience
		told    string // Grpc-Timeout
		want    string // the code; empty if nothing is to be counted
		logged  bool   // in mode errors
	}{
		"went well":           {backend: status(0), want: "OK"},
		"nothing to do":       {backend: status(5), want: "NotFound"},
		"fault":               {backend: status(2), want: "Unknown", logged: true},
		"data loss":           {backend: status(15), want: "DataLoss", logged: true},
		"trailers only, well": {backend: only("0"), want: "OK"},
		"trailers only":       {backend: only("14"), want: "Unavailable", logged: true},
		"refused by it":       {backend: only("16"), want: "Unauthenticated", logged: true},
		"unknown number":      {backend: only("17"), want: "other", logged: true},
		"no number":           {backend: only("-1"), want: "other", logged: true},
		"no status":           {backend: func(w http.ResponseWriter, _ *http.Request) { answer(w) }, want: "other", logged: true},
		"no gRPC server":      {backend: http.NotFound, want: "other", logged: true},
		"torn": {backend: func(w http.ResponseWriter, _ *http.Request) {
			answer(w)
			panic(http.ErrAbortHandler)
		}, want: "Unavailable", logged: true},
		"broken off": {backend: func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}, want: "Unavailable", logged: true},
		"our gate":    {backend: status(0), gate: tokenless{}, want: "Unauthenticated", logged: true},
		"no call":     {backend: status(0), kind: "application/json"},
		"grpc-web":    {backend: status(2), kind: "application/grpc-web"},
		"client gone": {backend: silent, leaves: true, want: "Canceled"},
		"client gone within its time": {
			backend: silent, leaves: true, told: "1H", want: "Canceled",
		},
		"deadline": {
			backend: silent, leaves: true, told: "50m", want: "DeadlineExceeded", logged: true,
		},
		"deadline in the midst": {backend: func(w http.ResponseWriter, r *http.Request) {
			answer(w)
			<-r.Context().Done()
		}, leaves: true, told: "50000u", want: "DeadlineExceeded", logged: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			deadline := time.After(time.Minute)
			var log strings.Builder
			level := AccessLog("errors")
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			backend := h2c(t, func(w http.ResponseWriter, r *http.Request) {
				if test.leaves {
					time.AfterFunc(patience, leave)
				}
				test.backend(w, r)
			})
			r := startLogged(t, Settings{GRPC: true, Gate: test.gate, AccessLog: level, Pool: pool(backend)}, &log)
			r.speakH2C(t)
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/s/Call", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			kind := test.kind
			if kind == "" {
				kind = "application/grpc"
			}
			request.Header.Set("Content-Type", kind)
			request.Header.Set("Grpc-Timeout", test.told)
			if response, err := r.http.Do(request); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			for testutil.CollectAndCount(r.requests) == 0 { // it is counted last
				select {
				case <-deadline:
					t.Fatal("the call has not ended")
				case <-time.After(time.Millisecond):
				}
			}
			for _, code := range grpcCodes {
				want := 0.0
				if code == test.want {
					want = 1
				}
				if got := testutil.ToFloat64(r.calls.WithLabelValues("r", code)); got != want {
					t.Errorf("%v calls are counted as %s, not %v", got, code, want)
				}
			}
			if got := strings.Contains(log.String(), "grpc_code="+test.want); test.logged != got {
				t.Errorf("logged: %t\n%s", got, log.String())
			}
		})
	}
}
