package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// kubeSteps runs a script with the functions of test/e2e/kube, in a directory of its own.
func kubeSteps(t *testing.T, script string) (output string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "ROOT=$PWD; . test/e2e/kube/steps\n"+script)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "WORK="+t.TempDir(), "KUBE=none", "KEEP=", "PROXY_MODE=")
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// A busybox that misses the answer to its unicast broadcasts, which the listener hears: the Service may be dead.
func TestKubeRenewalByBroadcastDoesNotCount(t *testing.T) {
	for name, test := range map[string]struct {
		answers string // of each renewal: u by unicast, b by broadcast
		want    int
	}{
		"unicast": {"u", 0}, "unicast at the third try": {"bbu", 0}, "broadcasts only": {"bbbbbb", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, status := kubeSteps(t, `
				answers=`+test.answers+`
				renewed() {
					echo "udhcpc: sending renew to server 192.0.2.2"
					[ "${answers:0:1}" = u ] || echo "udhcpc: broadcasting renew"
					answers=${answers:1}
					echo "renew 192.0.2.101 from 192.0.2.2"
				}
				ip() { # runs the client
					trap renewed USR1
					echo "bound 192.0.2.101 from 192.0.2.2"
					while sleep 0.1; do :; done
				}
				renew`)
			if status != test.want {
				t.Errorf("status %d, want %d\n%s", status, test.want, out)
			}
		})
	}
}

func TestKubeForgedHeaderIsRefusedByTheServiceItself(t *testing.T) {
	for code, want := range map[string]int{"404": 0, "200": 1, "000": 1} {
		out, status := kubeSteps(t, `
			loader() { :; }
			machine() { case $* in *auto.ipxe) echo "#!ipxe" ;; *) echo -n m1 ;; esac; }
			in_lan() { echo -n `+code+`; }
			boot`)
		if status != want {
			t.Errorf("%s: status %d, want %d\n%s", code, status, want, out)
		}
	}
}

func TestKubeLoaderComesAtTheFirstTry(t *testing.T) {
	for script, want := range map[string]int{"boot": 1, "boot 5": 0} {
		out, status := kubeSteps(t, `
			loader() { [ -e "$WORK/asked" ] || { touch "$WORK/asked"; return 1; }; }
			machine() { case $* in *auto.ipxe) echo "#!ipxe" ;; *) echo -n m1 ;; esac; }
			in_lan() { echo -n 404; }
			`+script)
		if status != want {
			t.Errorf("%s: status %d, want %d\n%s", script, status, want, out)
		}
	}
}

func TestKubeClusterThatIsKeptIsNotTakenDown(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	const script = `
		can() { :; }
		cluster_down() { echo "taken down"; }
		ip() { :; }
		`
	begin := script + "LOCK=" + lock + "; begin; trap - EXIT"
	if out, status := kubeSteps(t, "KEEP=1\n"+begin); status != 0 || !strings.Contains(out, "taken down") {
		t.Errorf("the first: status %d\n%s", status, out)
	}
	out, status := kubeSteps(t, begin)
	if status != 77 || strings.Contains(out, "taken down") || !strings.Contains(out, `"test/e2e/kube/run down" takes it down`) {
		t.Errorf("the next: status %d\n%s", status, out)
	}
	if out, status := kubeSteps(t, script+"LOCK="+lock+"; down; begin; trap - EXIT"); status != 0 {
		t.Errorf("after down: status %d\n%s", status, out)
	}
}
