package envdoc

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

type inner struct {
	LogLevel string `default:"info" desc:"how much is logged"`
}

type settings struct {
	inner
	Node    string `required:"true" desc:"this node"`
	APIPort int    `desc:"a port"`
}

func TestTable(t *testing.T) {
	want := "| variable | default | meaning |\n|---|---|---|\n" +
		"| `P_LOG_LEVEL` | `info` | how much is logged |\n| `P_NODE` | required | this node |\n| `P_APIPORT` | - | a port |\n"
	if diff := cmp.Diff(want, Table("P", reflect.TypeFor[settings]())); diff != "" {
		t.Error(diff)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "p_now", Help: `What is "now".`}),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "p_drops_total", Help: "Drops."}, []string{"route", "reason"}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "other", Help: "Another program's."}),
	)
	want := "| metric | labels | meaning |\n|---|---|---|\n" +
		"| `p_drops_total` | route, reason | Drops. |\n| `p_now` |  | What is \"now\". |\n"
	if diff := cmp.Diff(want, Metrics(registry, "p_")); diff != "" {
		t.Error(diff)
	}
}

func TestReplace(t *testing.T) {
	const document = "# D\n<!-- begin a -->\nold\n<!-- end a -->\nrest\n"
	for name, test := range map[string]struct{ document, want string }{
		"there":      {document, "# D\n<!-- begin a -->\nnew $1\n<!-- end a -->\nrest\n"},
		"no begin":   {"<!-- end a -->\n", ""},
		"no end":     {"<!-- begin a -->\n", ""},
		"other name": {"<!-- begin b -->\n<!-- end b -->\n", ""},
	} {
		got, err := Replace(test.document, "a", "new $1\n")
		if diff := cmp.Diff(test.want, got); diff != "" || (err != nil) != (test.want == "") {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

func TestSettings(t *testing.T) {
	const document = "Say `P_A=0`.\n\n```ini\nEnvironment=P_A=1 P_B=x,y\nEnvironment=PP_A=2\n```\nP_C=3\n```sh\nrun -e P_A=4 \\\n\t-e P_D=5\n```\n"
	want := []map[string]string{{"P_A": "1", "P_B": "x,y"}, {"P_A": "4", "P_D": "5"}}
	if diff := cmp.Diff(want, Settings(document, "P")); diff != "" {
		t.Error(diff)
	}
}
