package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/artifacts"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
	"github.com/tinkerbell/stack/pkg/proxy/web"
)

// metrics are those of all the packages below, made once, and what concerns the table as a whole.
type metrics struct {
	pools *endpoint.Metrics
	tcp   *tcp.Metrics
	web   *web.Metrics
	files *artifacts.Metrics
	datagramMetrics

	readyRoutes *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	m := &metrics{
		pools:           endpoint.NewMetrics(r),
		tcp:             tcp.NewMetrics(r),
		web:             web.NewMetrics(r),
		files:           artifacts.NewMetrics(r),
		datagramMetrics: newDatagramMetrics(r),
		readyRoutes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "stack_proxy", Name: "route_ready",
			Help: "Whether the route could serve when readiness was last asked: 1 or 0.",
		}, []string{"route"}),
	}
	r.MustRegister(m.readyRoutes)
	return m
}

func (m *metrics) ready(route string, ready bool) {
	value := 0.0
	if ready {
		value = 1
	}
	m.readyRoutes.WithLabelValues(route).Set(value)
}
