package logring

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reader is what a ring writes to, and fails as it is told.
type reader struct {
	mu   sync.Mutex
	got  bytes.Buffer
	take func(b []byte) (int, error) // nil takes all
}

func (r *reader) Write(b []byte) (int, error) {
	r.mu.Lock()
	take := r.take
	r.mu.Unlock()
	n, err := len(b), error(nil)
	if take != nil {
		n, err = take(b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got.Write(b[:n])
	return n, err
}

func (r *reader) set(take func(b []byte) (int, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.take = take
}

func (r *reader) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Split(strings.TrimSuffix(r.got.String(), "\n"), "\n")
}

// start makes a ring that tells of lost lines in a line.
func start(out io.Writer) *Ring {
	var r *Ring
	r = New(out, func(lost uint64) { fmt.Fprintf(r, "lost %d\n", lost) })
	return r
}

// Nobody who logs waits for a reader that hangs. When it is back it gets what there was room for, in order, and one line
// that tells how many are missing.
func TestReaderThatHangsHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, back := &reader{}, make(chan struct{})
		out.set(func(b []byte) (int, error) { <-back; return len(b), nil })
		r := start(out)
		text := strings.Repeat("x", 1000)
		const lines = 3000
		for i := range lines {
			fmt.Fprintf(r, "%d %s\n", i, text)
		}
		synctest.Wait()
		lost := r.Lost()
		if kept := lines - lost; kept < size/1100 || kept > size/1000 {
			t.Errorf("%d of %d lines were kept, want 1 MiB", kept, lines)
		}
		close(back)
		synctest.Wait()
		fmt.Fprintln(r, "after")
		r.Close(time.Second)
		got := out.lines()
		for i, line := range got[:lines-lost] {
			if line != fmt.Sprint(i, " ", text) {
				t.Fatalf("line %d is %.40q", i, line)
			}
		}
		rest := strings.Join(got[lines-lost:], ",")
		if want := fmt.Sprintf("lost %d,after", lost); rest != want {
			t.Errorf("then came %q, want %q", rest, want)
		}
	})
}

// A line of which a part was written is ended when there is room again: a full disk, or a pipe that somebody else made
// non-blocking.
func TestLinesAreWhole(t *testing.T) {
	for _, failure := range []error{syscall.EAGAIN, syscall.ENOSPC, io.ErrShortWrite} {
		t.Run(failure.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out, calls := &reader{}, 0
				out.take = func(b []byte) (int, error) {
					if calls++; calls%3 == 0 {
						return len(b), nil
					}
					return min(len(b), calls%2), failure
				}
				r := start(out)
				for i := range 100 {
					fmt.Fprintf(r, "line %d\n", i)
					synctest.Wait()
				}
				time.Sleep(time.Minute)
				r.Close(time.Second)
				got := out.lines()
				if len(got) != 100 || r.Lost() != 0 {
					t.Errorf("got %d lines, %d lost", len(got), r.Lost())
				}
				for i, line := range got {
					if line != fmt.Sprint("line ", i) {
						t.Fatalf("line %d is %q", i, line)
					}
				}
			})
		})
	}
}

// A reader that is gone costs lines, which are told to the next one.
func TestNextReaderIsToldOfLostLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &reader{}
		out.set(func(b []byte) (int, error) { return 0, syscall.EPIPE })
		r := start(out)
		for i := range 5 {
			fmt.Fprintf(r, "line %d\n", i)
			synctest.Wait()
		}
		out.set(nil)
		fmt.Fprintln(r, "heard")
		synctest.Wait()
		fmt.Fprintln(r, "next")
		r.Close(time.Second)
		if got := strings.Join(out.lines(), ","); got != "heard,next,lost 5" || r.Lost() != 5 {
			t.Errorf("got %q, %d lost", got, r.Lost())
		}
	})
}

// What was logged before the end is written. A reader that is too slow for that gets what it takes in the time that Close
// was given, and the number of the others last; one that takes nothing delays the end by twice that time.
func TestCloseWaitsForAReaderAndNotForever(t *testing.T) {
	for _, test := range []struct {
		name  string
		piece time.Duration // that the reader takes for a piece
		lines int           // that it gets
		took  time.Duration
	}{
		{"as fast as it comes", 0, 400, 0},
		{"slow", 5 * time.Millisecond, 400, 505 * time.Millisecond}, // one line at first, then four each time,
		{"too slow", 90 * time.Millisecond, 45, 1170 * time.Millisecond},
		{"not at all", 0, 0, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := &reader{}
				out.take = func(b []byte) (int, error) {
					if test.lines == 0 {
						return 0, syscall.EAGAIN
					}
					time.Sleep(test.piece)
					return len(b), nil
				}
				r := start(out)
				for i := range 400 {
					fmt.Fprintf(r, "%0999d\n", i)
					if i == 0 {
						synctest.Wait()
					}
				}
				begin := time.Now()
				r.Close(time.Second)
				if took := time.Since(begin); took != test.took {
					t.Errorf("Close took %v, want %v", took, test.took)
				}
				got := out.lines()
				want := []string{}
				for i := range test.lines {
					want = append(want, fmt.Sprintf("%0999d", i))
				}
				switch test.lines {
				case 0:
					want = []string{""}
				case 45:
					want = append(want, "lost 355")
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("lines (-want +got):\n%s", diff)
				}
				synctest.Wait()
			})
		})
	}
}

// TestPipes: pipes as a program has them for stderr: read slowly, blocking or not, and one that nobody reads any more.
func TestPipes(t *testing.T) {
	for name, nonblock := range map[string]bool{"blocking": false, "non-blocking since the start": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			flags := unix.O_RDWR
			if nonblock {
				flags |= unix.O_NONBLOCK
			}
			fd, err := unix.Open(path, flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			r := start(os.NewFile(uintptr(fd), path))
			const lines = 2000 // more than the pipe takes, less than the ring
			for i := range lines {
				fmt.Fprintf(r, "%0100d\n", i)
			}
			in, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			scanner := bufio.NewScanner(in)
			for i := range lines {
				if !scanner.Scan() || scanner.Text() != fmt.Sprintf("%0100d", i) {
					t.Fatalf("line %d is %q: %v", i, scanner.Text(), scanner.Err())
				}
			}
			r.Close(time.Minute)
		})
	}
	t.Run("made non-blocking by somebody else", func(t *testing.T) {
		in, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Dup(int(out.Fd())) // Fd makes it blocking, so that package os takes it for that
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		defer in.Close()
		stderr := os.NewFile(uintptr(fd), "stderr")
		defer stderr.Close()
		if err := unix.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
		r := start(stderr)
		const lines = 2000
		for i := range lines {
			fmt.Fprintf(r, "%0100d\n", i)
		}
		scanner := bufio.NewScanner(in)
		for i := range lines {
			if !scanner.Scan() || scanner.Text() != fmt.Sprintf("%0100d", i) {
				t.Fatalf("line %d is %q: %v", i, scanner.Text(), scanner.Err())
			}
		}
		r.Close(time.Minute)
		if r.Lost() != 0 {
			t.Errorf("%d lines were lost", r.Lost())
		}
	})
	t.Run("nobody reads any more", func(t *testing.T) {
		in, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		r := start(out)
		in.Close()
		for range 10 {
			fmt.Fprintln(r, "line")
		}
		r.Close(time.Minute)
		if r.Lost() != 10 {
			t.Errorf("%d lines were lost, want 10", r.Lost())
		}
	})
}

// BenchmarkWrite is what a line of 200 bytes costs whoever logs it.
func BenchmarkWrite(b *testing.B) {
	r := start(io.Discard)
	defer r.Close(time.Second)
	line := []byte(strings.Repeat("x", 199) + "\n")
	b.ReportAllocs()
	for b.Loop() {
		_, _ = r.Write(line)
	}
}
