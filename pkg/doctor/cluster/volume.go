package cluster

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

// setState is a line of stack-proxy's metrics: a set of the operating system's files, and the state that it is in.
var setState = regexp.MustCompile(
	`^stack_proxy_artifacts_set_state\{set="([^"]*)",state="(full|read_only|invalid|unavailable)"\} 1$`)

// lookAtFiles asks a pod whether it has the files that it is to fetch: the volume may be full. Where nobody may ask
// that, nothing is said.
func (l *looker) lookAtFiles(ctx context.Context, p pod) {
	const patience, mostMetrics = 2 * time.Second, 16 << 20
	if l.AdminPort == 0 || p.Status.PodIP == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	u := "http://" + net.JoinHostPort(p.Status.PodIP, strconv.Itoa(l.AdminPort)) + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u, http.NoBody)
	if err != nil {
		return
	}
	client := http.Client{Transport: &http.Transport{DialContext: l.Dial, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return
	}
	defer func() { _ = response.Body.Close() }()
	for lines := bufio.NewScanner(io.LimitReader(response.Body, mostMetrics)); lines.Scan(); {
		if found := setState.FindStringSubmatch(lines.Text()); found != nil {
			l.find("files-not-fetched", "pod %s does not have the files of set %s: %s", p.Metadata.Name, found[1], found[2])
		}
	}
}
