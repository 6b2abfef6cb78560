package main

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tinkerbell/stack/pkg/lb/elect"
)

// Bounds of the connections to the API for leases. In HTTP/2 one carries a hundred requests at a time or more.
const (
	laneCount = 4
	// laneWidth is how many connections a lane has at a time, among them those that are being made. Where the API speaks
	// HTTP/1.1 alone, it is how many requests as well.
	laneWidth = 4
)

// lanes take requests in turn, each by connections of its own: one that hangs does not keep the next request, and
// however many hang, there are few connections.
type lanes struct {
	config *rest.Config
	times  elect.Times
	next   atomic.Uint32
	of     [laneCount]atomic.Pointer[http.Transport]
}

// newLanes makes the client for leases. An answer later than the deadline of a renewal is of no use.
func newLanes(config *rest.Config, times elect.Times) (http.RoundTripper, error) {
	l := &lanes{config: config, times: times}
	for i := range l.of {
		transport, err := l.transport()
		if err != nil {
			return nil, err
		}
		l.of[i].Store(transport)
	}
	return rest.HTTPWrappersForConfig(config, l)
}

func (l *lanes) transport() (*http.Transport, error) {
	config, err := rest.TLSConfigFor(l.config)
	if err != nil {
		return nil, err
	}
	proxy := http.ProxyFromEnvironment
	if l.config.Proxy != nil {
		proxy = l.config.Proxy
	}
	dialer := net.Dialer{Timeout: 2 * l.times.Retry} // a SYN that is lost is sent again after a second
	return &http.Transport{
		Proxy: proxy, DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: l.times.Deadline,
		ForceAttemptHTTP2: true, MaxConnsPerHost: laneWidth, MaxIdleConnsPerHost: laneWidth, IdleConnTimeout: time.Minute,
		HTTP2: &http.HTTP2Config{SendPingTimeout: l.times.Retry, PingTimeout: l.times.Deadline},
	}, nil
}

// RoundTrip implements http.RoundTripper. Where the API's certificate is not of the authority that is known, the
// cluster may have another one since, which the next request reads.
func (l *lanes) RoundTrip(r *http.Request) (*http.Response, error) {
	lane := &l.of[l.next.Add(1)%laneCount]
	now := lane.Load()
	response, err := now.RoundTrip(r)
	if _, unknown := errors.AsType[*tls.CertificateVerificationError](err); unknown {
		if next, failed := l.transport(); failed == nil && lane.CompareAndSwap(now, next) {
			now.CloseIdleConnections()
		}
	}
	if response != nil {
		// With it client-go would ask again at once, ten times, beside the elector's own next request.
		response.Header.Del("Retry-After")
	}
	return response, err
}
