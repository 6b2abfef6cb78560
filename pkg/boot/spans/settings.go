package spans

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// The variables of OpenTelemetry's specification that this package reads itself. The SDK reads the others: headers,
// certificates, compression, timeouts, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_*.
const (
	disabledVariable = "OTEL_SDK_DISABLED"
	exporterVariable = "OTEL_TRACES_EXPORTER"
	queueVariable    = "OTEL_BSP_MAX_QUEUE_SIZE"
)

// The kinds of a variable that may be set for all signals or for traces, which counts more.
var (
	endpointVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}
	protocolVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"}
)

// The protocols.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// settings are what the variables say.
type settings struct {
	on       bool
	protocol string
	queue    int // spans that wait at most
}

// mostWaiting bounds the queue, whatever is set.
const mostWaiting = 16384

// read reads the variables, and names each that cannot be meant.
func read(getenv func(string) string) (settings, error) {
	s := settings{protocol: protocolHTTP, queue: sdk.DefaultMaxQueueSize}
	var faults []error
	fault := func(variable, value, why string) {
		faults = append(faults, fmt.Errorf("%s=%q: %s", variable, value, why))
	}
	for _, variable := range endpointVariables {
		if value := strings.TrimSpace(getenv(variable)); value != "" {
			s.on = true
			u, err := url.Parse(value)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				fault(variable, value, "no URL such as http://collector:4318")
			}
		}
	}
	if !s.on || strings.EqualFold(strings.TrimSpace(getenv(disabledVariable)), "true") {
		return settings{}, nil
	}
	switch value := strings.TrimSpace(getenv(exporterVariable)); value {
	case "", "otlp":
	case "none":
		return settings{}, nil
	default:
		fault(exporterVariable, value, "neither otlp nor none")
	}
	for _, variable := range protocolVariables {
		value := strings.TrimSpace(getenv(variable))
		if value == "" {
			continue
		}
		s.protocol = value
		if value != protocolGRPC && value != protocolHTTP {
			fault(variable, value, "neither grpc nor http/protobuf")
		}
		break
	}
	if value := strings.TrimSpace(getenv(queueVariable)); value != "" {
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > mostWaiting {
			fault(queueVariable, value, fmt.Sprintf("no number from 1 to %d", mostWaiting))
		}
		s.queue = n
	}
	return s, errors.Join(faults...)
}
