package soak

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// routesFile has every protocol. What changes from one version to the next: limits, times (net/http takes
// them only in a new server) and a route that is there or not.
const routesFile = `routes:
- {name: tcp, protocol: tcp, listen: "%[1]s:42113", backends: "backend.soak.:9001", limits: {connections: %[2]d}}
- {name: pass, protocol: tcp, listen: "%[1]s:42114", backends: "backend.soak.:9003"}
- {name: grpc, protocol: grpc, listen: "%[1]s:42115", backends: "backend.soak.:9003"}
- {name: idle-pass, protocol: tcp, listen: "%[1]s:42116", backends: "stable.soak.:9003", limits: {connections: %[2]d}}
- {name: idle-grpc, protocol: grpc, listen: "%[1]s:42117", backends: "stable.soak.:9003", limits: {connections: %[2]d}}
- {name: http, protocol: http, listen: "%[1]s:7171", backends: "backend.soak.:9002",
   timeouts: {idle: %[4]ds}}
- {name: files, protocol: files, listen: "%[1]s:8080", files: {directory: "%[5]s"}, limits: {connections: %[2]d}}
- {name: tftp, protocol: tftp, listen: "%[1]s:69", backends: "backend.soak.:69", timeouts: {idle: %[3]ds}}
- {name: syslog, protocol: syslog, listen: "%[1]s:514", backends: "backend.soak.:514"}
- {name: udp, protocol: udp, listen: "%[1]s:5000", backends: "backend.soak.:9004", timeouts: {idle: 2s}}
`

const extraRoute = `- {name: extra, protocol: %[2]s, listen: "%[1]s:5001", backends: "stable.soak.:9001"}
`

func (r *run) writeRoutes(version int) error {
	file := fmt.Sprintf(routesFile, proxyIP, 1000+version%5, 10+version%4, 64+version/4%2, r.path("files"))
	if version%2 == 1 {
		file += fmt.Sprintf(extraRoute, proxyIP, []string{"tcp", "http", "udp"}[version/2%3])
	}
	next := r.path("routes.next")
	if err := os.WriteFile(next, []byte(file), 0o600); err != nil {
		return fmt.Errorf("failed to write routes: %w", err)
	}
	return os.Rename(next, r.path("routes.yaml"))
}

// reload changes the routes again and again; now and then the file is wrong, and now and then a signal asks.
func (r *run) reload(ctx context.Context) {
	for version := 1; ; version++ {
		pause(ctx, r.Reload)
		if ctx.Err() != nil {
			return
		}
		kind := "ok"
		var err error
		switch {
		case version%7 == 0:
			kind, err = "wrong", os.WriteFile(r.path("routes.yaml"), []byte("routes: [{name: 1"), 0o600)
		case version%5 == 0:
			kind, err = "signal", r.proxy.Signal(syscall.SIGHUP)
		default:
			err = r.writeRoutes(version)
		}
		if err != nil {
			r.fail("failed to change the routes: %v", err)
		}
		r.mu.Lock()
		r.reloads[kind]++
		r.mu.Unlock()
	}
}

// Times around a change. The zone's answers live for a second.
const (
	settle = 3 * time.Second // until nothing new goes to what left the zone
	mend   = 4 * time.Second // until what was killed is noticed: retries, timeouts of clients
)

// churn has backends leave and come back: told in the zone first, or killed. Once in a while the zone itself is silent.
func (r *run) churn(ctx context.Context) {
	for i := 0; ; i++ {
		pause(ctx, r.Churn)
		if ctx.Err() != nil {
			return
		}
		s := r.servers[i%len(r.servers)]
		switch i % 3 {
		case 0:
			r.tally.changed("left")
			r.zone.set("backend.soak", r.serving(s)...)
			pause(ctx, settle)
			r.kill(ctx, s)
		case 1:
			r.tally.changed("killed")
			r.kill(ctx, s)
		case 2:
			r.tally.changed("zone silent")
			r.zone.silence(true)
			pause(ctx, r.silence(i/3))
			r.zone.silence(false)
			continue
		}
		pause(ctx, time.Second)
		if err := s.start(); err != nil {
			r.fail("failed to start backend %s again: %v", s.ip, err)
		}
		r.zone.set("backend.soak", r.serving()...)
	}
}

// silence is how long the zone's i-th one takes: a few lifetimes of its answers, and in a long run once in a while a
// minute.
func (r *run) silence(i int) time.Duration {
	if r.Duration >= 20*time.Minute && i%5 == 1 {
		return time.Minute
	}
	return settle
}

// kill ends a server. What it had open may fail, and nothing else: new connections find another one.
func (r *run) kill(ctx context.Context, s *server) {
	begun := time.Now()
	r.tally.excuse(begun, begun.Add(mend))
	s.kill()
	pause(ctx, mend/2)
}

// serving are the addresses of the servers that run, but for those that are about to leave.
func (r *run) serving(without ...*server) []string {
	var addrs []string
	for _, s := range r.servers {
		if s.running() && (len(without) == 0 || s != without[0]) {
			addrs = append(addrs, s.ip)
		}
	}
	return addrs
}
