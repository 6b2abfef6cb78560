package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
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
	content string // "" is what failing says
	failing finding
	asked   int
}

func (s *server) fetch(_ context.Context, _, name string, _ *Loader) (*Loader, finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.content == "" {
		return nil, s.failing, errors.New("scripted")
	}
	return newLoader(name, []byte(s.content)), alike, nil
}

// says makes comparisons find this: "-" no file, "!" no answer, "?" more than one content.
func (s *server) says(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = what
	switch what {
	case "-":
		s.content, s.failing = "", missing
	case "!":
		s.content, s.failing = "", silent
	case "?":
		s.content, s.failing = "", unlike
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
		{"K01: passed on until it was compared", "A+0=checking A+1=A A+1=A"},
		{"K02: never to be had", "!+0=checking !+6=unreachable !+6=unreachable"},
		{"K03: two contents", "?+0=checking ?+6=differs ?+6=differs"},
		{"K04: wrong once, before", "?+0=checking A+6=differs A+1=A"},
		{"K05: wrong once, after", "A+0=checking A+1=A ?+25=A A+1=A A+6=A A+25=A"},
		{"K05: wrong again and again", "A+0=checking A+1=A ?+25=A ?+6=A ?+1=differs ?+6=differs A+6=differs A+1=A"},
		{"K06: changed", "A+0=checking A+1=A B+25=A B+1=changed B+6=changed B+1=B"},
		{"K06: changed while no machine boots", "A+0=checking A+1=A B+3600=checking B+1=changed B+6=changed B+1=B"},
		{"K07: two servers take turns", "A+0=checking B+25=A B+1=changed A+6=changed A+1=changed B+6=changed B+1=changed"},
		{"K09: away", "A+0=checking A+1=A !+25=A !+50=A !+3600=checking !+1=A"},
		{"K09: away, and back with another", "A+0=checking A+1=A !+3600=checking !+6=A B+10=A B+1=changed B+6=changed B+1=B"},
		{"K12: not there", "-+0=checking -+1=absent A+50=absent A+11=absent A+1=A"},
		{"K14: not there once", "A+0=checking A+1=A -+25=A A+6=A A+1=A"},
		{"K14: withdrawn", "A+0=checking A+1=A -+25=A -+6=A -+1=absent"},
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
					machine := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
					if got := k.what(machine, "x.efi"); got != want {
						t.Fatalf("%d %s: got %s", i, word, got)
					}
					synctest.Wait()
				}
				stop()
				synctest.Wait()
			})
		})
	}
}

// what is what a machine gets: a content, or an answer. The name is overwritten afterwards, as that of a datagram.
func (k *Keeper) what(machine netip.Addr, name string) string {
	view := []byte(name)
	defer clear(view)
	found, answer := k.Find(machine, unsafe.String(unsafe.SliceData(view), len(view)), time.Now())
	if found == nil {
		return answer.String()
	}
	b := make([]byte, found.Size())
	if err := found.Read(b, 0); err != nil {
		return err.Error()
	}
	return string(b)
}

// K08: a machine that has asked for the size of one gets that one, and only for a minute.
func TestMachineGetsWhatItBeganWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{content: "A"}
		k := New(Config{At: ":1/", fetch: s.fetch})
		ctx, stop := context.WithCancel(context.Background())
		go k.Run(ctx)
		first, second := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::2")
		want := func(machine netip.Addr, want string) {
			t.Helper()
			if got := k.what(machine, "f.efi"); got != want {
				t.Errorf("%s got %s, want %s", machine, got, want)
			}
			synctest.Wait()
		}
		want(first, "checking")
		want(first, "A")
		s.says("B")
		time.Sleep(checkEvery)
		want(first, "A")
		want(first, "A")
		want(second, "changed")
		time.Sleep(checkSoon)
		want(second, "changed")
		want(second, "B")
		want(first, "A")
		time.Sleep(chainFor - checkEvery - checkSoon)
		want(first, "B")
		s.says("-")
		time.Sleep(checkEvery)
		want(first, "B")
		time.Sleep(checkSoon)
		want(first, "B")
		want(first, "absent") // the server's decision counts
		stop()
		synctest.Wait()
	})
}

// Smee's names are there before the first machine asks, and are not asked for again until one does.
func TestSmeesNamesAreWarm(t *testing.T) {
	for _, tt := range []struct {
		says, want string
		asked      int
	}{{"A", "A", len(smees) + 1}, {"-", "absent", 2 * len(smees)}, {"!", "unreachable", 6 * len(smees)}} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			s.says(tt.says)
			var log bytes.Buffer
			k := New(Config{At: ":1/", fetch: s.fetch, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			ctx, stop := context.WithCancel(context.Background())
			go k.Run(ctx)
			time.Sleep(warmFor / 2)
			if got := k.what(netip.MustParseAddr("192.0.2.1"), smees[0]); got != tt.want {
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
		machine := netip.MustParseAddr("192.0.2.1")
		for i := range 10_000 {
			k.what(machine, fmt.Sprintf("%d.efi", i))
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
			k.what(machine, name)
			synctest.Wait()
			got := k.what(machine, name)
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
		machine := netip.MustParseAddr("192.0.2.1")
		k.what(machine, "a.efi")
		synctest.Wait()
		held, _ := k.Find(machine, "a.efi", time.Now())
		if k.Set(""); k.On() {
			t.Error("on")
		}
		if len(k.names)+len(k.began) > 0 || k.bytes != 0 {
			t.Errorf("%d names, %d machines, %d bytes", len(k.names), len(k.began), k.bytes)
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
