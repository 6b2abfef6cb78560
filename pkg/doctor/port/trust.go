package port

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
)

// forwardedFor is how stack-proxy tells a service of the machine that asks.
const forwardedFor = "X-Forwarded-For"

// trust asks a metadata service itself in the name of a machine that it knows, as stack-proxy does, and again through
// the stack, which must not believe that.
func (c Check) trust(ctx context.Context) (string, error) {
	machine, through := c.url.Query().Get("machine"), c.url.Query().Get("through")
	if machine == "" || through == "" {
		return "", errors.New("failed to ask for a machine: no ?machine=ADDRESS&through=host:port")
	}
	direct := url.URL{Scheme: "http", Host: c.url.Host, Path: c.url.Path}
	status, own, err := inTheNameOf(ctx, direct, machine)
	switch {
	case err != nil:
		return "", err
	case status != http.StatusOK:
		return "", fmt.Errorf("%s does not know %s when %s names that by %s (status %d): add the network of %s, which is "+
			"the pods', to its trusted proxies (Tinkerbell's chart: trustedProxies); or no Hardware object has the address",
			c.url.Host, machine, own, forwardedFor, status, own)
	}
	stack := url.URL{Scheme: "http", Host: through, Path: c.url.Path}
	status, own, err = inTheNameOf(ctx, stack, machine)
	switch {
	case err != nil:
		return "", err
	case status == http.StatusOK:
		return "", fmt.Errorf("%s believes %s when that says to be %s: take its network out of trustedProxies, since a "+
			"machine there could pass for any other", through, own, machine)
	}
	return fmt.Sprintf("%s knows %s by %s, which from others is not believed", c.url.Host, machine, forwardedFor), nil
}

// inTheNameOf asks for a document, and says from which address it did. Where the service sends machines to HTTPS it is
// followed.
func inTheNameOf(ctx context.Context, u url.URL, machine string) (status int, own string, err error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		own, _, _ = net.SplitHostPort(c.Conn.LocalAddr().String())
	}})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return 0, own, err
	}
	request.Header.Set(forwardedFor, machine)
	transport := unverified("")
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, own, err
	}
	defer response.Body.Close()
	return response.StatusCode, own, nil
}
