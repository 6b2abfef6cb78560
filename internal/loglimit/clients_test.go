package loglimit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// account adds up a log of lines and of what was left out.
type account struct {
	lines   map[string]int // by kind
	told    int
	tellers int // lines that tell
}

func read(t *testing.T, log *bytes.Buffer) account {
	t.Helper()
	a := account{lines: map[string]int{}}
	for decoder := json.NewDecoder(log); decoder.More(); {
		var line struct {
			Msg, Kind string
			Lines     int
		}
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line.Msg == "lines about clients were left out" {
			a.told += line.Lines
			a.tellers++
		} else {
			a.lines[line.Kind]++
		}
	}
	return a
}

// flood has each of some clients ask for lines of a kind, so many a second, and one other client for one line of another
// kind each second.
func flood(t *testing.T, clients, each int, duration time.Duration) account {
	t.Helper()
	var log bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		logger := slog.New(slog.NewJSONHandler(&log, nil))
		limiter := NewClients(logger)
		tell := func(client netip.Addr, kind string) {
			if limiter.Allow(client, kind) {
				logger.Info("request", "kind", kind)
			}
		}
		good := netip.MustParseAddr("192.0.2.1")
		for range duration / time.Second {
			for i := range clients {
				for range each {
					tell(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), "404")
				}
			}
			tell(good, "502")
			time.Sleep(time.Second)
		}
		limiter.Flush()
	})
	return read(t, &log)
}

// One client, and many, get a bounded number of lines. The others are told exactly, and hide no other trouble.
func TestFloodIsBoundedAndTold(t *testing.T) {
	for _, test := range []struct{ clients, each, seconds, most, least int }{
		{1, 10_000, 1, 20, 20},
		{1, 100, 60, 20 + 60, 20 + 55},
		{2000, 50, 1, 200, 200},
		{2000, 1, 60, 200 + 60*5, 200 + 55*5},
		{1, 1, 60, 60, 60},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			got := flood(t, test.clients, test.each, time.Duration(test.seconds)*time.Second)
			if n := got.lines["404"]; n > test.most || n < test.least {
				t.Errorf("%d lines, want %d to %d", n, test.least, test.most)
			}
			if want := test.clients * test.each * test.seconds; got.lines["404"]+got.told != want {
				t.Errorf("%d lines and %d told, want %d in all", got.lines["404"], got.told, want)
			}
			if got.lines["502"] != test.seconds {
				t.Errorf("%d lines of the other client, want %d", got.lines["502"], test.seconds)
			}
			if got.tellers > test.seconds/10+1 {
				t.Errorf("%d lines tell of the others", got.tellers)
			}
		})
	}
}

// What is left out is told without another line, and once.
func TestWhatWasLeftOutIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		limiter := NewClients(slog.New(slog.NewJSONHandler(&log, nil)))
		for range 100 {
			limiter.Allow(netip.MustParseAddr("2001:db8::1"), "404")
			limiter.Allow(netip.MustParseAddr("2001:db8::2"), "405")
		}
		for i := range 2 * mostKinds {
			limiter.Allow(netip.MustParseAddr("2001:db8::1"), fmt.Sprint(i))
		}
		time.Sleep(leftOutPeriod + 1)
		synctest.Wait()
		const want = `"msg":"lines about clients were left out","lines":174,"kinds":"404: 80, 405: 80, other: 14"}`
		if !bytes.Contains(log.Bytes(), []byte(want)) {
			t.Errorf("got %s, want %s", &log, want)
		}
		log.Reset()
		limiter.Flush()
		time.Sleep(time.Hour)
		if log.Len() > 0 {
			t.Errorf("then came %s", &log)
		}
	})
}

// A client of IPv6 is its /64: it has no more lines with more addresses.
func TestClientIsAPrefix(t *testing.T) {
	limiter, allowed := NewClients(slog.New(slog.DiscardHandler)), 0
	for i := range 100 {
		if limiter.Allow(netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i)), "404") {
			allowed++
		}
	}
	limiter.Flush()
	if allowed > clientBurst+1 {
		t.Errorf("%d lines", allowed)
	}
}
