package edge_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// TestFetchKilled kills the real "stack-proxy fetch" at random points, a hundred times, while releases come, lie and
// go, and has machines download from the real stack-proxy that serves the volume all the while: whatever is answered
// is, byte by byte, of one release or the other, and once there, a file does not go away.
func TestFetchKilled(t *testing.T) {
	t.Parallel()
	kills := 100
	if testing.Short() {
		kills = 10
	}
	dir := t.TempDir()
	proxy := program.ForTest(t, "stack-proxy")
	volume := filepath.Join(dir, "volume")
	const kernel, initramfs, image = "vmlinuz", "initramfs", "image-latest-lts-x86_64.iso"
	var served, published [2]map[string][]byte // by version
	for i := range served {
		v := uint64(i)
		served[i] = map[string][]byte{kernel: noise(10+v, 400<<10), initramfs: noise(20+v, 200<<10), image: noise(30+v, 600<<10)}
		os := map[string][]byte{kernel: served[i][kernel], initramfs: served[i][initramfs]}
		published[i] = map[string][]byte{image: served[i][image], "hook-latest-lts-x86_64.tar.gz": tarball(t, os)}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(1, seed))
	r := &release{random: rand.New(rand.NewPCG(2, seed)), faults: map[string]int{}}
	server := httptest.NewServer(r)
	defer server.Close()
	artifacts := filepath.Join(dir, "artifacts.yaml")
	text := fmt.Sprintf("volume: %s\nsets:\n- {name: hook, url: '%s', extension: both}\n", volume, server.URL)
	if err := os.WriteFile(artifacts, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fetch := func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, proxy, "fetch", "-f", artifacts)
	}
	base := serveVolume(t, proxy, dir, filepath.Join(volume, "current"))

	var stop atomic.Bool
	var downloads [2]atomic.Int64
	var machines sync.WaitGroup
	t.Cleanup(func() { stop.Store(true); machines.Wait() })
	for name := range served[0] {
		machines.Go(func() {
			there := false
			for !stop.Load() {
				status, body, err := download(base + "/" + name)
				whole := -1
				for i := range served {
					if bytes.Equal(body, served[i][name]) {
						whole = i
					}
				}
				switch {
				case err != nil:
					t.Errorf("%s: %v", name, err)
					return
				case status == http.StatusOK && whole < 0:
					t.Errorf("%s: %d bytes of neither release", name, len(body))
				case status == http.StatusOK:
					there = true
					downloads[whole].Add(1)
				case there || status != http.StatusServiceUnavailable && status != http.StatusNotFound:
					t.Errorf("%s: got %d, there before: %t", name, status, there)
				default:
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	ended := map[string]int{}
	const killed = "signal: killed"
	version := 0
	whole := 100 * time.Millisecond // how long a run takes that nobody kills
	for round := 0; ended[killed] < kills && round < 10*kills; round++ {
		if round%5 == 0 {
			version = 1 - version
		}
		if round%20 == 2 || round%20 == 7 {
			// Each release is fetched whole at times, on a machine too slow for it between two kills as well.
			r.publish(published[version], false, false)
			whole = fetchWhole(t, fetch)
			begun := time.Now()
			for downloads[version].Load() == 0 && time.Since(begun) < time.Minute {
				time.Sleep(time.Millisecond) // machines get what was fetched, before the other release comes
			}
		}
		r.publish(published[version], round%2 == 1, round%10 == 9)
		cmd := fetch(t.Context())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Int64N(int64(whole))))
		_ = cmd.Process.Kill() // it may have ended
		ended[fmt.Sprint(cmd.Wait())]++
	}
	r.publish(published[version], false, false)
	fetchWhole(t, fetch)
	stop.Store(true)
	machines.Wait()
	for name, want := range served[version] {
		if status, body, err := download(base + "/" + name); err != nil || status != http.StatusOK || !bytes.Equal(body, want) {
			t.Errorf("at last %s is %d with %d bytes, %v", name, status, len(body), err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(volume, "partial")); len(left) > 0 {
		t.Errorf("%d downloads are left under way", len(left))
	}
	t.Logf("ended by %v; faults %v; downloads %d and %d", ended, r.faults, downloads[0].Load(), downloads[1].Load())
	if ended[killed] < kills {
		t.Errorf("only %d runs were killed before they ended", ended[killed])
	}
	if !testing.Short() && (downloads[0].Load() == 0 || downloads[1].Load() == 0) {
		t.Error("only one release was ever served")
	}
}

// fetchWhole runs a fetch that nobody kills until it succeeds, and returns how long that one took.
func fetchWhole(t *testing.T, fetch func(context.Context) *exec.Cmd) time.Duration {
	t.Helper()
	for attempt := 1; ; attempt++ {
		begun := time.Now()
		said, err := fetch(t.Context()).CombinedOutput()
		if err == nil {
			return time.Since(begun)
		}
		if attempt == 20 {
			t.Fatalf("a run that nobody killed failed %d times: %v\n%s", attempt, err, said)
		}
	}
}

func download(url string) (int, []byte, error) {
	answer, err := http.Get(url)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// serveVolume runs stack-proxy with one route, which serves a directory on loopback, and returns its URL.
func serveVolume(t *testing.T, proxy, dir, files string) string {
	t.Helper()
	var ports [2]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = l.Addr().String()
		_ = l.Close()
	}
	routes := filepath.Join(dir, "routes.yaml")
	text := fmt.Sprintf("routes:\n- {name: files, protocol: files, listen: '%s', files: {directory: %s}, accessLog: 'off'}\n", ports[0], files)
	if err := os.WriteFile(routes, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	base := "http://" + ports[0]
	cmd := exec.Command(proxy)
	cmd.Env = []string{
		"STACK_PROXY_ROUTES_FILE=" + routes, "STACK_PROXY_ADMIN_ADDRESS=" + ports[1], "STACK_PROXY_DRAIN_GRACE=0s",
	}
	p, err := process.Start(t.Context(), cmd, process.Options{Ready: process.Listens(ports[0])})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := p.End(time.Minute); err != nil || t.Failed() {
			t.Errorf("stack-proxy: %v\n%s", err, p.Said())
		}
	})
	return base
}
