package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/daemon"
)

// Every fault names the variable to change, and all are named at once.
func TestSettingsNameEveryFault(t *testing.T) {
	wrong := map[string]string{
		"NODE": "Node 1", "NAMESPACE": "a", "WATCH_NAMESPACE": "A", "CLASS": "a/b/c", "ADDRESSES": "192.0.2.1/24", "LEASE_DURATION": "6500ms",
		"RENEW_DEADLINE": "6s", "RETRY_PERIOD": "5s", "ANNOUNCE_INTERVAL": "1ms", "PROBE_INTERVAL": "1ms", "UNHEARD_OF": "1",
		"MODE": "ipvs", "DRAIN_TIMEOUT": "-1s", "CONNECTIONS": "-1", "CONNECTIONS_PER_CLIENT": "many", "ZONE": "rack-1", "PPROF": "true",
	}
	for variable, value := range wrong {
		t.Setenv(prefix+"_"+variable, value)
	}
	var s settings
	err := daemon.ParseEnv(prefix, &s)
	if err == nil {
		t.Fatal("got no error")
	}
	for variable := range wrong {
		named := 0
		for line := range strings.Lines(err.Error()) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, prefix+"_"+variable+":") || strings.HasPrefix(line, prefix+"_"+variable+"=") {
				named++
			}
		}
		if named != 1 {
			t.Errorf("%s is named %d times in:\n%v", variable, named, err)
		}
	}
}

// Leases are where Services are watched, so that two stack-lb of one namespace find each other's; else in that of the
// kubeconfig's context.
func TestLeasesAreWhereTheServicesAreWatched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://192.0.2.1"}}], users: [{name: c}],
contexts: [{name: c, context: {cluster: c, user: c, namespace: here}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for watched, want := range map[string]string{"": "here", "there": "there"} {
		s := settings{Kubeconfig: path, WatchNamespace: watched, LeaseDuration: 6 * time.Second}
		c, err := s.cluster(slog.New(slog.DiscardHandler))
		if err != nil || c.namespace != want {
			t.Errorf("watched %q: leases in %q, %v; want %s", watched, c.namespace, err, want)
		}
	}
}

func TestSettingsThatAreGood(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"in a pod":   {"NODE": "node-1.example.com"},
		"kubeconfig": {"NODE": "n", "KUBECONFIG": "/k"},
		"watched":    {"NODE": "n", "KUBECONFIG": "/k", "WATCH_NAMESPACE": "stack"},
		"short":      {"NODE": "n", "LEASE_DURATION": "3s"},
		"proxy":      {"NODE": "n", "MODE": "proxy"},
		"addresses":  {"NODE": "n", "ADDRESSES": "192.0.2.0/24,2001:db8::/64"},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range env {
				t.Setenv(prefix+"_"+variable, value)
			}
			var s settings
			if err := daemon.ParseEnv(prefix, &s); err != nil {
				t.Error(err)
			}
		})
	}
}

// A program that cannot start says why in one message.
func TestStartsThatFail(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("kind: [Config"), 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(dir, "nowhere")
	if err := os.WriteFile(nowhere, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		env  map[string]string
		want string
	}{
		"no node":             {nil, "STACK_LB_NODE: required, and not set"},
		"no service account":  {map[string]string{"NODE": "n"}, "or set STACK_LB_KUBECONFIG"},
		"no such kubeconfig":  {map[string]string{"NODE": "n", "KUBECONFIG": filepath.Join(dir, "none")}, "STACK_LB_KUBECONFIG"},
		"a broken kubeconfig": {map[string]string{"NODE": "n", "KUBECONFIG": broken}, "STACK_LB_KUBECONFIG"},
		"an empty kubeconfig": {map[string]string{"NODE": "n", "KUBECONFIG": nowhere}, "STACK_LB_KUBECONFIG"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for variable, value := range test.env {
				t.Setenv(prefix+"_"+variable, value)
			}
			var stdout, stderr strings.Builder
			ns := nstest.New(t) // one stack-lb to a network namespace
			ns.Do(t, func() error {
				if code := run(nil, &stdout, &stderr); code != 1 {
					return fmt.Errorf("exit code %d", code)
				}
				return nil
			})
			if !strings.Contains(stderr.String(), test.want) {
				t.Errorf("it says %q, not %q", &stderr, test.want)
			}
		})
	}
}

func TestOneInANetworkNamespace(t *testing.T) {
	a, b := nstest.New(t), nstest.New(t)
	a.Do(t, func() error {
		only, err := alone()
		if err == nil {
			t.Cleanup(func() { _ = only.Close() })
		}
		return err
	})
	if err := a.Try(func() error { _, err := alone(); return err }); err == nil || !strings.Contains(err.Error(), "another stack-lb runs") {
		t.Errorf("got %v", err)
	}
	b.Do(t, func() error {
		only, err := alone()
		if err == nil {
			_ = only.Close()
		}
		return err
	})
}
