package fetch

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/artifacts"
)

// TestKilled kills the fetching process at random points while releases come and go, and reads what is served after
// each: never a wrong byte, and never a kernel of one release beside the initramfs of another.
func TestKilled(t *testing.T) {
	rounds := 40 // test/e2e/edge kills the program itself, a hundred times
	if testing.Short() {
		rounds = 10
	}
	const kernel, initramfs, image = "vmlinuz", "initramfs", "image-latest-lts-x86_64.iso"
	version := func(i int) map[string][]byte {
		return map[string][]byte{
			kernel: noise(100+i, 200<<10), initramfs: noise(200+i, 100<<10), image: noise(300+i, 300<<10),
		}
	}
	versions := []map[string][]byte{version(0), version(1)}
	r := newRelease(t)
	publish := func(i int) {
		v := versions[i%2]
		r.set(map[string][]byte{
			image: v[image],
			"hook-latest-lts-x86_64.tar.gz": archive(t,
				entry{name: kernel, body: v[kernel]}, entry{name: initramfs, body: v[initramfs]}),
		})
	}
	r.slow = time.Millisecond
	volume := t.TempDir()
	h := artifacts.New(artifacts.Config{Directory: configDirectory(volume)})
	defer h.Close()
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	points := map[string]int{}
	seen := map[int]int{}
	was, most := -1, 80*time.Millisecond // what a run takes, about; it is found out below, since machines differ
	for round := range rounds {
		publish(round)
		if round%7 == 3 {
			r.fail("hook-latest-lts-x86_64.tar.gz", breakOff, wrongBytes)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FETCH_TEST_VOLUME="+volume, "FETCH_TEST_URL="+r.URL)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(most/8 + time.Duration(random.Int64N(int64(most))))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		points[left(t, volume)]++
		whole := -1
		for i, v := range versions {
			right := 0
			for name, want := range v {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+name, nil))
				switch {
				case w.Code == http.StatusOK && bytes.Equal(w.Body.Bytes(), want):
					right++
				case w.Code == http.StatusOK && !bytes.Equal(w.Body.Bytes(), versions[1-i][name]):
					t.Fatalf("round %d: %s is neither release's", round, name)
				case w.Code != http.StatusOK && len(seen) > 0:
					t.Fatalf("round %d: %s is gone: %d", round, name, w.Code)
				}
			}
			if right == len(v) {
				whole = i
			} else if right != 0 {
				t.Fatalf("round %d: %d of %d files are of release %d", round, right, len(v), i)
			}
		}
		if whole >= 0 {
			seen[whole]++
		}
		switch {
		case whole != was: // it went over to the other release
			was, most = whole, max(most*3/4, 20*time.Millisecond)
		case whole != round%2: // it did not come so far
			most = min(most*5/4, 3*time.Second)
		}
	}
	t.Logf("killed with this left behind: %v; served after: %v", points, seen)
	if len(seen) != 2 {
		t.Errorf("the release never changed: %v", seen)
	}
	f := newFetcher(t, configFor(volume, Set{Name: "hook", URL: r.URL, Extension: both}))
	r.reset()
	if err := f.Once(t.Context()); err != nil {
		t.Errorf("the last run failed: %v", err)
	}
	if got := left(t, volume); got != "clean" {
		t.Errorf("after the last run: %s", got)
	}
}

func configDirectory(volume string) string { return volume + "/" + nameCurrent }

// left says what an interrupted run left behind.
func left(t *testing.T, volume string) string {
	var found []string
	for _, dir := range []string{namePartial, nameGenerations} {
		entries, _ := os.ReadDir(volume + "/" + dir)
		for _, entry := range entries {
			switch name := entry.Name(); {
			case strings.HasPrefix(name, prefixStaging):
				found = append(found, "staging")
			case dir == namePartial:
				found = append(found, "partial")
			}
		}
	}
	if len(found) == 0 {
		return "clean"
	}
	return strings.Join(found, "+")
}

// TestVolumeFullOrReadOnly runs itself in a mount namespace of its own, on a small tmpfs.
func TestVolumeFullOrReadOnly(t *testing.T) {
	if os.Getenv("FETCH_TEST_TMPFS") == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestVolumeFullOrReadOnly$", "-test.v")
		cmd.Env = append(os.Environ(), "FETCH_TEST_TMPFS=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		switch {
		case os.IsPermission(err):
			t.Skipf("needs CAP_SYS_ADMIN for a mount namespace: %v", err)
		case err != nil:
			t.Errorf("%v\n%s", err, out)
		case bytes.Contains(out, []byte("--- SKIP")):
			t.Skip(string(out))
		}
		return
	}
	volume := t.TempDir()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skipf("needs private mounts: %v", err)
	}
	if err := unix.Mount("tmpfs", volume, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("needs a tmpfs: %v", err)
	}
	defer func() { _ = unix.Unmount(volume, unix.MNT_DETACH) }()
	r := newRelease(t)
	const name = "a-latest-lts-x86_64.iso"
	f := newFetcher(t, configFor(volume, Set{Name: "hook", URL: r.URL, Extension: both}))
	step := func(what string, body []byte, state State, want []byte) {
		t.Helper()
		r.set(map[string][]byte{name: body})
		if err := f.Once(t.Context()); stateOf(err) != state {
			t.Errorf("%s: got %v, want %v", what, err, state)
		}
		if got := served(t, f)[name]; got != string(want) {
			t.Errorf("%s: %d bytes are served, want %d", what, len(got), len(want))
		}
		if f.Ready() != nil {
			t.Errorf("%s: not ready: %v", what, f.Ready())
		}
	}
	one, two, three, four := noise(1, 900<<10), noise(2, 900<<10), noise(3, 1900<<10), noise(4, 2500<<10)
	step("first", one, StateCurrent, one)
	step("second", two, StateCurrent, two)
	step("third fits once the first is given up", three, StateCurrent, three)
	step("fourth does not fit beside the third", four, StateFull, three)
	// A server that does not say how much there is: the disk itself says that it is full.
	r.fail(name, none)
	chunked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, bytes.NewReader(r.files[strings.TrimPrefix(req.URL.Path, "/")]))
	}))
	defer chunked.Close()
	f = newFetcher(t, configFor(volume, Set{Name: "hook", URL: chunked.URL, Extension: both}))
	step("no length is told", four, StateFull, three)
	f = newFetcher(t, configFor(volume, Set{Name: "hook", URL: r.URL, Extension: both}))
	step("back to the third", three, StateCurrent, three)

	if err := unix.Mount("", volume, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	f = newFetcher(t, configFor(volume, Set{Name: "hook", URL: r.URL, Extension: both}))
	step("read-only, nothing to do", three, StateReadOnly, three)
	step("read-only", one, StateReadOnly, three)
	if err := fmt.Errorf("x: %w", syscall.EDQUOT); stateOf(err) != StateFull {
		t.Error("a quota is a full disk")
	}
}
