package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/pkg/relay/trace"
)

const (
	traceCommand = "trace"
	tracePath    = "/trace"
	traceTimeout = 10 * time.Second
)

// traceHandler serves the last packets as a pcap file: /trace?mac=02:00:00:00:00:50&last=20. Only to this network
// namespace: xid and chaddr of what is pending is all that a rogue server needs.
func traceHandler(rings ...*trace.Ring) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if !fromHere(request) {
			http.Error(w, "only from inside the pod: use dhcp-relay trace, or kubectl port-forward", http.StatusForbidden)
			return
		}
		query := request.URL.Query()
		var mac net.HardwareAddr
		if text := query.Get("mac"); text != "" {
			var err error
			if mac, err = net.ParseMAC(text); err != nil || len(mac) > 16 {
				http.Error(w, fmt.Sprintf("mac %q: not a hardware address", text), http.StatusBadRequest)
				return
			}
		}
		last := 0
		if text := query.Get("last"); text != "" {
			var err error
			if last, err = strconv.Atoi(text); err != nil || last < 1 {
				http.Error(w, fmt.Sprintf("last %q: not a number of packets", text), http.StatusBadRequest)
				return
			}
		}
		w.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
		w.Header().Set("Content-Disposition", `attachment; filename="dhcp-relay.pcap"`)
		_ = trace.Write(w, mac, last, rings...) // whoever asked has gone
	})
}

// fromHere tells a request of this network namespace: kubectl exec and port-forward come from localhost, and the
// subcommand comes from the admin address where that is not all addresses. The rest of 127/8 does not count: a
// service mesh hands over other pods' requests from there.
func fromHere(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	switch addr := peer.Addr().Unmap(); addr {
	case netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback():
		return true
	default:
		local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		return ok && local.AddrPort().Addr().Unmap() == addr
	}
}

// runTrace is the subcommand: it fetches the last packets of a running relay. admin is where that serves its admin
// port.
func runTrace(args []string, admin string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("dhcp-relay trace", flag.ContinueOnError)
	flags.SetOutput(stderr)
	mac := flags.String("mac", "", "only packets of this hardware address")
	last := flags.Int("last", 0, "only that many packets (0: all that are kept)")
	output := flags.String("output", "-", "file to write; - is standard output")
	text := flags.Bool("text", false, "in words, instead of a pcap file")
	flags.StringVar(&admin, "admin", admin, "admin address of the relay")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if err := fetchTrace(admin, *mac, *last, *output, *text, stdout); err != nil {
		fmt.Fprintf(stderr, "dhcp-relay trace: %v\n", err)
		return 1
	}
	return 0
}

func fetchTrace(admin, mac string, last int, output string, text bool, stdout io.Writer) error {
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return fmt.Errorf("failed to parse admin address %q: %w", admin, err)
	}
	host = cmp.Or(host, "127.0.0.1")
	query := url.Values{}
	if mac != "" {
		query.Set("mac", mac)
	}
	if last != 0 {
		query.Set("last", strconv.Itoa(last))
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceTimeout)
	defer cancel()
	where := url.URL{Scheme: "http", Host: net.JoinHostPort(host, port), Path: tracePath, RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("failed to ask the relay at %s: %w", admin, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("the relay refused: %s", text)
	}
	write := func(w io.Writer) error {
		if text {
			return trace.Text(w, response.Body)
		}
		_, err := io.Copy(w, response.Body)
		return err
	}
	if output == "-" {
		return write(stdout)
	}
	file, err := os.Create(output)
	if err != nil {
		return fmt.Errorf("failed to create %s: %w", output, err)
	}
	return errors.Join(write(file), file.Close())
}
