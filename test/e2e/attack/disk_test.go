package attack

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mostThreads are those of a program whose disk hangs.
const mostThreads = 200

// Thousands of clients of forty addresses ask for cold files of a disk that hangs: the proxy's threads and memory have
// a bound, other routes and what is in memory are served meanwhile, and all files once the disk is back. They come by
// both ways: small files from the event loops, and those that are too large for these from net/http.
func TestHungDiskEndsNobody(t *testing.T) {
	proxy := proxyProgram(t)
	for name, c := range map[string]struct{ clients, size int }{
		"small files": {3000, 60_000},
		"large files": {2000, 120_000}, // a request that net/http serves is charged 40 KiB, and 3,000 would be all the room
	} {
		t.Run(name, func(t *testing.T) { hungDisk(t, proxy, c.clients, c.size) })
	}
}

func hungDisk(t *testing.T, proxy string, clients, size int) {
	dir, limit := site(t), limit(t)
	container := contain(t, limit)
	disk, err := NewDisk(container, dir)
	if errors.Is(err, ErrNoThrottle) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Remove(); err != nil {
			t.Error(err)
		}
	})
	cold := make([]string, clients)
	for i := range cold {
		cold[i] = filepath.Join(dir, "files", "cold-"+strconv.Itoa(i))
		if err := os.WriteFile(cold[i], make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "files", "warm"), []byte("warm"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Forget(cold); err != nil {
		t.Fatal(err)
	}
	p := start(t, container, inMemory(t, proxy), dir, limit)
	defer p.Kill()
	// What is served meanwhile has been served before.
	others := map[string]string{
		"http://" + address(portHTTP) + "/meta": "metadata", "http://" + address(portFiles) + "/warm": "warm",
		"http://" + address(portAdmin) + "/healthz": "ok\n",
	}
	client := patient(&http.Transport{DisableKeepAlives: true})
	served := func() error {
		var failures []error
		for url, want := range others {
			failures = append(failures, get(t.Context(), client, url, []byte(want)))
		}
		return errors.Join(failures...)
	}
	machine, err := NewMachine()
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	if err := errors.Join(machine.Boot(t.Context()), served(), disk.Add(p.PID()), disk.Hang()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Heal() }() // or the program would not end
	container.Watch()
	done := make(chan Loads, 1)
	rack := Rack{
		Machines: clients, Shared: 40, Address: address(portFiles), Path: "/cold-%d", Size: int64(size),
	}
	go func() { done <- rack.Load(t.Context()) }()
	most, rounds := 0, 0
	for begun := time.Now(); time.Since(begun) < 2*duration; rounds++ {
		if err := served(); err != nil {
			t.Errorf("while the disk hangs: %v", err)
		}
		most = max(most, threads(t, p.PID()))
		time.Sleep(50 * time.Millisecond)
	}
	select {
	case loads := <-done:
		t.Fatalf("the disk did not hang: %s", loads)
	default:
	}
	if err := disk.Heal(); err != nil {
		t.Fatal(err)
	}
	loads := <-done
	most = max(most, threads(t, p.PID()))
	t.Logf("%s; %d threads at most, %d rounds of others meanwhile", loads, most, rounds)
	if loads.Whole != clients || most > mostThreads {
		t.Errorf("of %d clients %d have their file; %d threads, want at most %d\n%s",
			clients, loads.Whole, most, mostThreads, p.Said())
	}
	survived(t, container, p, limit, true) // in v1 the peak has the files that are in memory
}

// inMemory copies a program to where the disk that hangs does not have its pages, which the kernel may forget.
func inMemory(t *testing.T, program string) string {
	t.Helper()
	f, err := os.CreateTemp("/dev/shm", "stack-proxy-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(f.Name()) })
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Chmod(0o700), f.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func threads(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\nThreads:")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
