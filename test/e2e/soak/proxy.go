package soak

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/tinkerbell/stack/test/e2e/process"
)

// proxyProcess is the proxy as its users run it.
type proxyProcess struct{ *process.Process }

func startProxy(ctx context.Context, r *run) (*proxyProcess, error) {
	const bind = `mount --bind "$0" /etc/resolv.conf && exec "$1"`
	cmd := exec.Command("sh", "-c", bind, r.path("resolv.conf"), r.Proxy)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Env = append(os.Environ(),
		"STACK_PROXY_ROUTES_FILE="+r.path("routes.yaml"),
		"STACK_PROXY_ADMIN_ADDRESS="+address(portAdmin), "STACK_PROXY_LOG_LEVEL="+r.LogLevel,
		"STACK_PROXY_DRAIN_GRACE=0s", "STACK_PROXY_DRAIN_TIMEOUT=10s",
	)
	p, err := process.Start(ctx, cmd, process.Options{
		Name: "the proxy", Log: r.path("stack-proxy.log"),
		Ready: process.Answers("http://" + address(portAdmin) + "/readyz"),
	})
	return &proxyProcess{p}, err
}

// stop asks the proxy to end. It must, and with status 0.
func (p *proxyProcess) stop() error { return p.End(30 * time.Second) }

// metrics reads /metrics.
func (p *proxyProcess) metrics(ctx context.Context) ([]byte, map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address(portAdmin)+"/metrics", nil)
	if err != nil {
		return nil, nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, nil, err
	}
	var parser expfmt.TextParser
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	return text, families, err
}

// judgeMetrics holds what the proxy tells after all this to the field's conventions, with the library that
// "promtool check metrics" is made of, and to what was done to it.
func (r *run) judgeMetrics(ctx context.Context) {
	text, families, err := r.proxy.metrics(ctx)
	if err != nil {
		r.fail("failed to read the proxy's metrics: %v", err)
		return
	}
	if err := os.WriteFile(r.path("metrics.txt"), text, 0o600); err != nil {
		r.fail("failed to keep the metrics: %v", err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		r.fail("failed to check the metrics: %v", err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "stack_proxy_") {
			r.fail("metric %s: %s", problem.Metric, problem.Text)
		}
	}
	for _, name := range []string{
		"stack_proxy_tcp_transferred_bytes_total", "stack_proxy_tcp_connections_total", "stack_proxy_http_requests_total",
		"stack_proxy_grpc_handled_total",
		"stack_proxy_tftp_transfers_total", "stack_proxy_tftp_drops_total", "stack_proxy_syslog_datagrams_total",
		"stack_proxy_udp_sessions_total", "stack_proxy_config_reloads_total",
	} {
		if !slices.ContainsFunc(families[name].GetMetric(), func(m *dto.Metric) bool {
			return m.GetCounter().GetValue() > 0
		}) {
			r.fail("%s has counted nothing", name)
		}
	}
}

// stillOpen names a gauge that is not zero. Transfers that clients gave up take their time-out.
func stillOpen(families map[string]*dto.MetricFamily) string {
	for _, gauge := range []string{
		"stack_proxy_tcp_open_connections", "stack_proxy_http_open_connections", "stack_proxy_tftp_transfers",
		"stack_proxy_udp_sessions",
	} {
		if families[gauge] == nil {
			return "no metric " + gauge
		}
		for _, m := range families[gauge].GetMetric() {
			if m.GetGauge().GetValue() != 0 {
				return gauge + " " + m.String()
			}
		}
	}
	return ""
}
