package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/artifacts"
	"github.com/tinkerbell/stack/pkg/edge"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
	"github.com/tinkerbell/stack/pkg/proxy/web"
)

// metrics has the metrics of all packages below, made once, and those of the table.
type metrics struct {
	pools *endpoint.Metrics
	tcp   *tcp.Metrics
	web   *web.Metrics
	files *artifacts.Metrics
	edge  *edge.Metrics
	datagramMetrics

	reloads    metric.ByResult
	reloadGood prometheus.Gauge
	reloadTime prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, p *Proxy) *metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	s := metric.New(r, "stack_proxy")
	gauge := func(name, help string) prometheus.Gauge { return s.Gauge(name, help).WithLabelValues() }
	m := &metrics{
		pools:           endpoint.NewMetrics(r),
		tcp:             tcp.NewMetrics(r),
		web:             web.NewMetrics(r),
		files:           artifacts.NewMetrics(r),
		edge:            edge.NewMetrics(r),
		datagramMetrics: newDatagramMetrics(r),
		reloads: metric.Results(s.Counter("config_reloads_total",
			"Reloads of the routes, by result: ok, or error (the old ones stayed in force).", "result")),
		reloadGood: gauge("config_last_reload_successful", "Whether the last reload of the routes went well: 1 or 0."),
		reloadTime: gauge("config_last_reload_success_timestamp_seconds", "When routes were last put in force."),
	}
	m.reloadGood.Set(1)
	m.reloadTime.SetToCurrentTime()
	if p.options.Account != nil {
		r.MustRegister(p.options.Account)
	}
	r.MustRegister(p.shapers, &collector{p})
	return m
}

func (m *metrics) reloaded(err error) {
	m.reloads.Count(err)
	if err != nil {
		m.reloadGood.Set(0)
		return
	}
	m.reloadGood.Set(1)
	m.reloadTime.SetToCurrentTime()
}

// collector has the metrics that are computed at each scrape.
type collector struct{ proxy *Proxy }

var readyDesc = prometheus.NewDesc("stack_proxy_route_ready", "Whether the route could serve now: 1 or 0.",
	[]string{"route", "protocol"}, nil)

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) { descs <- readyDesc }

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	for _, s := range c.proxy.Status() {
		value := 0.0
		if s.Ready {
			value = 1
		}
		metrics <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, value, s.Route.Name,
			string(s.Route.Protocol))
	}
}
