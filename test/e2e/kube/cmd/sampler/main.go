//go:build linux

// Command sampler watches the address of a Service until it is told to end. "sampler arp" asks the link who has the
// address and writes down each change of the answer; "sampler http" asks a URL again and again and counts what is lost.
// It is a judge of its own: none of its code is stack-lb's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// verdict is what a sampler writes at its end.
type verdict interface{ text() string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sampler:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("sampler", flag.ContinueOnError)
	link := flags.String("interface", "", "`name` of the link to ask (arp)")
	address := flags.String("address", "", "IPv4 `address` to ask for (arp)")
	url := flags.String("url", "", "what to ask for (http)")
	out := flags.String("out", "", "`file` for the result")
	if len(args) == 0 {
		return errors.New("say arp or http")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	var result verdict
	var err error
	switch args[0] {
	case "arp":
		ip := net.ParseIP(*address).To4()
		if ip == nil {
			return fmt.Errorf("-address: %q is no IPv4 address", *address)
		}
		result, err = sampleARP(ctx, *link, [4]byte(ip))
	case "http":
		result = sampleHTTP(ctx, *url)
	default:
		return fmt.Errorf("%q is neither arp nor http", args[0])
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	fmt.Println(result.text())
	if err := os.WriteFile(*out, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("failed to write result: %w", err)
	}
	return nil
}

// each calls f in each interval until ctx is done.
func each(ctx context.Context, interval time.Duration, f func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f()
		}
	}
}

// owners is what the link said, by time.
type owners struct {
	mu      sync.Mutex
	begun   time.Time
	present []string // who has answered the probe that was sent last

	Probes    int      `json:"probes"`
	Answered  int      `json:"answered"`
	TwoOwners int      `json:"twoOwners"`
	Longest   float64  `json:"longestSilence"` // seconds
	Changes   []change `json:"changes"`
	last      string
	quiet     time.Time
}

// change is that from this second on others answered than before: none, one, or more.
type change struct {
	At     float64 `json:"at"`
	Owners string  `json:"owners"`
}

func (o *owners) text() string {
	return fmt.Sprintf("%d ARP probes, %d answered, %d by two stations; %.1f s without an answer at most; %d changes",
		o.Probes, o.Answered, o.TwoOwners, o.Longest, len(o.Changes))
}

// probe counts the one before.
func (o *owners) probe(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.begun.IsZero() {
		o.begun, o.quiet = now, now
	} else {
		o.count(now)
	}
	o.Probes++
	o.present = nil
}

func (o *owners) count(now time.Time) {
	if len(o.present) > 0 {
		o.Answered++
		o.quiet = now
	} else if o.Answered > 0 {
		o.Longest = max(o.Longest, now.Sub(o.quiet).Seconds())
	}
	if len(o.present) > 1 {
		o.TwoOwners++
	}
	slices.Sort(o.present)
	if present := strings.Join(o.present, " "); present != o.last {
		o.Changes = append(o.Changes, change{now.Sub(o.begun).Seconds(), present})
		fmt.Printf("%s %8.1f s: answered by [%s]\n", now.Format(time.TimeOnly), now.Sub(o.begun).Seconds(), present)
		o.last = present
	}
}

func (o *owners) answer(mac string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Contains(o.present, mac) {
		o.present = append(o.present, mac)
	}
}
