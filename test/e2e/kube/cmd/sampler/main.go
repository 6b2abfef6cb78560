//go:build linux

// Command sampler watches the address of a Service until it is told to end. "sampler arp" asks the link for the
// address and notes which stations answer; "sampler http" asks a URL again and again and counts what is lost.
// It is a judge of its own: none of its code is stack-lb's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/arp"
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
		ip, fault := netip.ParseAddr(*address)
		if fault != nil || !ip.Is4() {
			return fmt.Errorf("-address: %q is no IPv4 address", *address)
		}
		result, err = sampleARP(ctx, *link, ip)
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

// owners are the stations that answered by ARP.
type owners struct{ arp.Log }

func (o owners) text() string {
	lines := []string{fmt.Sprintf("%d ARP probes, %d answered, %d by two stations; %.1f s without an answer at most",
		o.Probes, o.Probes-o.NoOwner, o.TwoOwners, o.Silence().Seconds())}
	for _, span := range o.Spans {
		at := span.At.Format(time.TimeOnly)
		lines = append(lines, fmt.Sprintf("%s: %d probes answered by [%s]", at, span.Probes, span.Owners))
	}
	return strings.Join(lines, "\n")
}

// sampleARP asks the link for the address until it is told to end.
func sampleARP(ctx context.Context, link string, address netip.Addr) (owners, error) {
	s, err := arp.Sample(link, nil, address)
	if err != nil {
		return owners{}, err
	}
	<-ctx.Done()
	s.Stop()
	return owners{s.Since(time.Time{})[0]}, nil
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
