package envdoc

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
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
