package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is what comparisons find.
type server struct {
	mu      sync.Mutex
	content string // "" is failing
	failing error
	takes   time.Duration
	asked   int
}

func (s *server) fetch(ctx context.Context, _, name string, known *Loader) (*Loader, error) {
	s.mu.Lock()
	takes := s.takes
	s.asked++
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(takes):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := newLoader(name, []byte(s.content))
	switch {
	case s.content == "":
		return nil, s.failing
	case found.same(known):
		return known, nil
	}
	return found, nil
}

// says makes comparisons find this: "-" no file, "!" no answer, "?" more than one content, "~" no answer for long.
func (s *server) says(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content, s.takes = what, 0
	switch what {
	case "-":
		s.content, s.failing = "", errMissing
	case "!":
		s.content, s.failing = "", errors.New("scripted")
	case "?":
		s.content, s.failing = "", errUnlike
	case "~":
		s.content, s.failing, s.takes = "", errors.New("scripted"), 40*time.Second
	}
}

func (s *server) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// Each play is a machine's requests, one for each word: what the server has just before (which stays), the seconds since
// the request before, and what the machine gets: a content, or an answer.
func TestPlays(t *testing.T) {
	for _, tt := range []struct{ name, play string }{
		{"passed on until it was read", "A+0=checking A+1=A A+1=A"},
		{"never to be had", "!+0=checking !+6=unreachable !+6=unreachable"},
		{"two contents", "?+0=checking ?+6=differs ?+6=differs A+6=differs A+1=A"},
		{"two contents, where one was kept", "A+0=checking A+1=A ?+25=A ?+1=differs A+6=differs A+1=A"},
		{"changed", "A+0=checking A+1=A B+25=A B+1=B"},
		{"changed while no machine boots", "A+0=checking A+1=A B+3600=A B+1=B"},
		{"away, at any age", "A+0=checking A+1=A !+25=A !+50=A !+3600=A !+86400=A"},
		{"slow, at any age", "A+0=checking A+1=A ~+25=A ~+1=A ~+60=A ~+3600=A ~+1=A"},
		{"away, and back with another", "A+0=checking A+1=A !+3600=A !+6=A B+10=A B+1=B"},
		{"not there", "-+0=checking -+1=absent A+50=absent A+11=absent A+1=A"},
		{"withdrawn", "A+0=checking A+1=A -+25=A -+1=absent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				k := New(Config{At: ":1/", fetch: s.fetch})
				ctx, stop := context.WithCancel(context.Background())
				go k.Run(ctx)
				for i, word := range strings.Fields(tt.play) {
					content, rest, _ := strings.Cut(word, "+")
					seconds, want, _ := strings.Cut(rest, "=")
					s.says(content)
					after, err := time.ParseDuration(seconds + "s")
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(after)
					if got := k.what("x.efi"); got != want {
						t.Fatalf("%d %s: got %s", i, word, got)
					}
					synctest.Wait()
				}
				stop()
			})
		})
	}
}

// Names are compared side by side: one whose server hangs keeps no other waiting.
func TestNamesAreComparedSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{content: "A", takes: 10 * time.Second}
		k := New(Config{At: ":1/", fetch: s.fetch})
		ctx, stop := context.WithCancel(context.Background())
		go k.Run(ctx)
		names := []string{"a.efi", "b.efi", "c.efi", "d.efi"}
		for _, name := range names {
			k.what(name)
			time.Sleep(newEvery)
		}
		time.Sleep(10 * time.Second)
		for _, name := range names {
			if got := k.what(name); got != "A" {
				t.Errorf("%s: got %s", name, got)
			}
		}
		stop()
	})
}

// what is what a machine gets: a content, or an answer. The name is overwritten afterwards, as that of a datagram.
func (k *Keeper) what(name string) string {
	view := []byte(name)
	defer clear(view)
	found, answer := k.Find(unsafe.String(unsafe.SliceData(view), len(view)), time.Now())
	if found == nil {
		return answer.String()
	}
	b := make([]byte, found.Size())
	if err := found.Read(b, 0); err != nil {
		return err.Error()
	}
	return string(b)
}

// Smee's names are there before the first machine asks, and are not asked for again until one does.
func TestSmeesNamesAreWarm(t *testing.T) {
	for _, tt := range []struct {
		says, want string
		asked      int
	}{{"A", "A", len(smees) + 1}, {"-", "absent", 2 * len(smees)}, {"!", "unreachable", 14 * len(smees)}} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			s.says(tt.says)
			var log bytes.Buffer
			k := New(Config{At: ":1/", fetch: s.fetch, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			ctx, stop := context.WithCancel(context.Background())
			go k.Run(ctx)
			time.Sleep(warmFor / 2)
			if got := k.what(smees[0]); got != tt.want {
				t.Errorf("%s: got %s", tt.says, got)
			}
			time.Sleep(time.Hour)
			if asked := s.questions(); asked == 0 || asked > tt.asked {
				t.Errorf("%s: asked %d times", tt.says, asked)
			}
			stop()
			synctest.Wait()
			if strings.Contains(log.String(), "not kept") {
				t.Errorf("%s: logged, with no machine there: %s", tt.says, log.String())
			}
		})
	}
}

// K12, K13: names that are invented cost the server ten questions a second and the proxy a bounded table, and what is
// kept is bounded as a whole.
func TestNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		s.says("-")
		k := New(Config{At: ":1/", fetch: s.fetch})
		ctx, stop := context.WithCancel(context.Background())
		go k.Run(ctx)
		for i := range 10_000 {
			k.what(fmt.Sprintf("%d.efi", i))
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		k.mu.Lock()
		if asked := s.questions(); asked > 110 || len(k.names) > mostNames {
			t.Errorf("%d questions in 10 s, %d names", asked, len(k.names))
		}
		k.mu.Unlock()
		time.Sleep(absentFor)
		s.says(strings.Repeat("x", 6<<20))
		for i, want := range []string{"kept", "kept", "full"} {
			time.Sleep(newEvery)
			name := fmt.Sprintf("large%d.efi", i)
			k.what(name)
			synctest.Wait()
			got := k.what(name)
			if len(got) == 6<<20 {
				got = "kept"
			}
			if got != want {
				t.Errorf("%d: %s, want %s", i, got, want)
			}
		}
		stop()
		synctest.Wait()
	})
}

// K15: what is off keeps nothing, and asks nobody.
func TestOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{content: "A"}
		k := New(Config{At: ":1/", fetch: s.fetch})
		ctx, stop := context.WithCancel(context.Background())
		go k.Run(ctx)
		k.what("a.efi")
		synctest.Wait()
		held, _ := k.Find("a.efi", time.Now())
		if k.Set(""); k.On() {
			t.Error("on")
		}
		if len(k.names) > 0 || k.bytes != 0 {
			t.Errorf("%d names, %d bytes", len(k.names), k.bytes)
		}
		if b := make([]byte, 1); held.Read(b, 0) != nil || b[0] != 'A' {
			t.Error("what is being served has gone")
		}
		if err := held.Read(make([]byte, 2), 0); err == nil {
			t.Error("more was read than there is")
		}
		stop()
		synctest.Wait()
	})
}
