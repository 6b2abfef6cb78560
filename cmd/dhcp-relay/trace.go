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
	"time"

	"github.com/tinkerbell/stack/pkg/relay/trace"
)

const (
	traceCommand = "trace"
	tracePath    = "/trace"
	traceTimeout = 10 * time.Second
)

// traceHandler serves the last packets as a pcap file: /trace?mac=02:00:00:00:00:50. Only to this network
// namespace: xid and chaddr of what is pending is all that a rogue server needs.
func traceHandler(rings ...*trace.Ring) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if !fromHere(request) {
			http.Error(w, "only from inside the pod: use dhcp-relay trace, or kubectl port-forward", http.StatusForbidden)
			return
		}
		var mac net.HardwareAddr
		if text := request.URL.Query().Get("mac"); text != "" {
			var err error
			if mac, err = net.ParseMAC(text); err != nil || len(mac) > 16 {
				http.Error(w, fmt.Sprintf("mac %q: not a hardware address", text), http.StatusBadRequest)
				return
			}
		}
		w.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
		w.Header().Set("Content-Disposition", `attachment; filename="dhcp-relay.pcap"`)
		_ = trace.Write(w, mac, rings...) // whoever asked has gone
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
	flags.StringVar(&admin, "admin", admin, "admin address of the relay")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if err := fetchTrace(admin, *mac, stdout); err != nil {
		fmt.Fprintf(stderr, "dhcp-relay trace: %v\n", err)
		return 1
	}
	return 0
}

func fetchTrace(admin, mac string, stdout io.Writer) error {
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return fmt.Errorf("failed to parse admin address %q: %w", admin, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceTimeout)
	defer cancel()
	where := "http://" + net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port) + tracePath + "?mac=" + url.QueryEscape(mac)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
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
	_, err = io.Copy(stdout, response.Body)
	return err
}
