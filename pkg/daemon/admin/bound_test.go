package admin

import (
	"net"
	"net/http"
	"strings"
	"testing"
)

// Connections that ask nothing keep no probe from its answer.
func TestIdleConnectionsLeaveProbesTheirAnswers(t *testing.T) {
	base := start(t, Options{}, func() error { return nil })
	var held []net.Conn
	for range 3 * maxConnections {
		c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	response, err := http.Get(base + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	for i, c := range held[:2*maxConnections-maxConnections/2] { // the oldest have been closed
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("connection %d has been told something", i)
		}
	}
}
