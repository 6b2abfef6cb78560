package page

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// maxPackets is how much of a machine's packets is handed through, in bytes.
const maxPackets = 64 << 20

// servePackets hands the relay's trace of a machine through, by the relay's own rule: to requests from within the pod.
// A page of somebody else in the same browser may not ask for them either, nor a name that was made to lead here.
func (s *Server) servePackets(w http.ResponseWriter, r *http.Request) {
	mac, err := net.ParseMAC(r.PathValue("id"))
	switch {
	case s.options.Relay == "":
		http.Error(w, "there is no dhcp-relay in this pod", http.StatusNotFound)
		return
	case err != nil || len(mac) != 6:
		http.Error(w, "packets are found by MAC, and this is none", http.StatusBadRequest)
		return
	case s.options.Local == nil || !s.options.Local(r) || !literal(r.Host) || foreign(r):
		http.Error(w, "packets only go to requests from inside the pod: use kubectl port-forward, or in the relay's "+
			"container\n/dhcp-relay trace -mac "+mac.String(), http.StatusForbidden)
		return
	}
	query := url.Values{"mac": {mac.String()}}
	where := url.URL{Scheme: "http", Host: s.options.Relay, Path: "/trace", RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, where.String(), http.NoBody)
	if err != nil {
		http.Error(w, "failed to ask the relay", http.StatusInternalServerError)
		return
	}
	response, err := client.Do(request)
	if err != nil {
		http.Error(w, "failed to ask the relay at "+s.options.Relay+": it does not answer", http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		http.Error(w, "the relay at "+s.options.Relay+" answers "+response.Status, http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
	name := strings.ReplaceAll(mac.String(), ":", "-")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.pcap"`)
	_, _ = io.Copy(w, io.LimitReader(response.Body, maxPackets)) // whoever asked has gone
}

// literal tells a Host header that nobody can have made lead here by DNS: an address, or localhost.
func literal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost"
}

// foreign tells a request that a page of another site has made a browser send.
func foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}
