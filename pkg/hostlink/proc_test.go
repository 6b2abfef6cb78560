package hostlink

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var equalRoutes = cmp.AllowUnexported(route{})

const (
	titles4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	zero6   = "00000000000000000000000000000000"
	any6    = zero6 + " 00 " + zero6 + " 00 " // destination and source of a default route
)

func TestDefaultRoutes4(t *testing.T) {
	tests := map[string]struct {
		text string
		want []route
	}{
		"empty":       {},
		"titles only": {text: titles4},
		"one": {
			text: titles4 + "eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n" +
				"eth0\t000200C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n",
			want: []route{{"eth0", 100}},
		},
		"two": {
			text: titles4 + "eth0\t00000000\t010200C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n" +
				"eth1\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n",
			want: []route{{"eth0", 600}, {"eth1", 0}},
		},
		"half of the world": {text: titles4 + "tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n"},
		"unreachable":       {text: titles4 + "*\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n"},
		"down":              {text: titles4 + "eth0\t00000000\t010200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0\n"},
		"damaged":           {text: titles4 + "eth0\t00000000\t010200C0\tzz\t0\t0\t0\t00000000\neth0\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, defaultRoutes4([]byte(test.text)), equalRoutes); diff != "" {
				t.Errorf("routes differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefaultRoutes6(t *testing.T) {
	tests := map[string]struct {
		text string
		want []route
	}{
		"empty": {},
		"one": {
			text: any6 + "20010db8000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n",
			want: []route{{"eth0", 1024}},
		},
		"the kernel's unreachable one": {text: any6 + zero6 + " ffffffff 00000001 00000000 00200200       lo\n"},
		"an administrator's":           {text: any6 + zero6 + " 00000001 00000001 00000000 00000201 eth0\n"},
		"a source of its own": {
			text: zero6 + " 00 " + zero6 + " 40 " + zero6 + " 00000001 00000001 00000000 00000003 eth0\n",
		},
		"a prefix": {
			text: zero6 + " 03 " + zero6 + " 00 " + zero6 + " 00000001 00000001 00000000 00000003 eth0\n",
		},
		"damaged": {text: any6 + zero6 + " xx 00000001 00000000 00000003 eth0\n" + zero6},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, defaultRoutes6([]byte(test.text)), equalRoutes); diff != "" {
				t.Errorf("routes differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefaultRouteChoosesLowestMetricThenIPv6(t *testing.T) {
	const six = any6 + zero6 + " 00000001 00000001 00000000 00000003 eth6\n"
	tests := map[string]struct {
		four, six    string
		name, family string
	}{
		"lowest metric": {
			four: titles4 + "wlan0\t00000000\t010200C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n" +
				"eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n",
			six: six, name: "eth0", family: "IPv4",
		},
		"the first of equals": {
			four: titles4 + "eth1\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n" +
				"eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n",
			name: "eth1", family: "IPv4",
		},
		"IPv6 where IPv4 has none": {four: titles4, six: six, name: "eth6", family: "IPv6"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := &Host{proc: fakeProc(t, map[string]string{"route": test.four, "ipv6_route": test.six})}
			name, family, err := h.defaultRoute()
			if name != test.name || family != test.family || err != nil {
				t.Errorf("got %q by %q, %v; want %q by %q", name, family, err, test.name, test.family)
			}
		})
	}
	h := &Host{proc: t.TempDir()} // not even the files
	_, _, err := h.defaultRoute()
	wantCause(t, err, NoRoute)
}

// fakeProc is the directory of a process, with files of its network.
func fakeProc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, "net", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func FuzzProc(f *testing.F) {
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, routes := range [][]route{defaultRoutes4(text), defaultRoutes6(text)} {
			for _, r := range routes {
				if r.device == "" {
					t.Errorf("got a route without interface from %q", text)
				}
			}
		}
	})
}
