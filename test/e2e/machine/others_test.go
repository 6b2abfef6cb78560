package machine_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// TestOthersBootAMachine has the boot servers of docs/others.md stand behind the pod in place of Tinkerbell, by the routes and
// with the configurations of docs/examples/others: a machine gets its address, its loader, its script, its kernel and
// its initramfs. matchbox is Go's to install, and is named by MATCHBOX=PATH.
func TestOthersBootAMachine(t *testing.T) {
	matchbox := os.Getenv("MATCHBOX")
	for name, programs := range map[string][]string{
		"dnsmasq": {"dnsmasq"}, "kea": {"kea-dhcp4", "dnsmasq"}, "matchbox": {"dnsmasq"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // labs do not see each other
			if name == "matchbox" && matchbox == "" {
				t.Skip("needs MATCHBOX=PATH")
			}
			for _, each := range programs {
				if _, err := exec.LookPath(each); err != nil {
					t.Skip(err)
				}
			}
			repo, err := program.Repo()
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			boot := strings.NewReplacer(
				"dnsmasq.example", lab.SmeeIP.String(), "/srv/tftp", dir)
			switch name {
			case "kea":
				boot = strings.NewReplacer("tftp.example", lab.HegelIP.String())
			case "matchbox": // its boot.ipxe leads there by "chain", which the machine in Go does not follow
				boot = strings.NewReplacer("dnsmasq.example", lab.SmeeIP.String(), "matchbox.example", lab.TinkIP.String(),
					"/srv/tftp", dir, "8080/boot.ipxe", "8080/ipxe")
			}
			example := func(file string) string {
				text, err := os.ReadFile(filepath.Join(repo, "docs/examples/others", file))
				if err != nil {
					t.Fatal(err)
				}
				text = []byte(boot.Replace(string(text)))
				path := filepath.Join(dir, file)
				if err := os.WriteFile(path, text, 0o644); err != nil {
					t.Fatal(err)
				}
				return path
			}
			large := bytes.Repeat([]byte("boot"), 100_000)
			for _, file := range []string{"undionly.kpxe", "ipxe.efi", "vmlinuz-x86_64", "initramfs-x86_64"} {
				if err := os.WriteFile(filepath.Join(dir, file), large, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			script := example("boot.ipxe")
			routes, err := os.ReadFile(example(name + ".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			m := uefi
			l := lab.ForTest(t, lab.Options{
				Machines: []lab.Machine{m}, Without: []string{lab.Smee, lab.Hegel}, Artifacts: dir, Routes: string(routes),
				Env: map[string][]string{lab.DHCPRelay: {
					"DHCP_RELAY_LISTENERS=macvlan0=" + lab.GatewayIP.String(), "DHCP_RELAY_AGENT_OPTIONS=link-selection",
				}},
			})
			start := func(p lab.Process) {
				t.Helper()
				p.Watch, p.Tmpfs = true, []string{"/run"}
				if _, err := l.Start(p); err != nil {
					t.Fatal(err)
				}
			}
			dhcp := lab.Process{Name: "dnsmasq", Role: lab.RoleSmee, Path: "dnsmasq", Args: []string{
				"--keep-in-foreground", "--log-facility=-", "--user=root", "--leasefile-ro", "--conf-file=" + example("dnsmasq.conf"),
			}}
			switch name {
			case "kea":
				start(lab.Process{
					Name: "kea", Role: lab.RoleSmee, Path: "kea-dhcp4", Args: []string{"-c", example("kea.json")},
					Env: []string{"KEA_PIDFILE_DIR=/run", "KEA_LOCKFILE_DIR=none", "PATH=/usr/sbin:/usr/bin"},
				})
				dhcp.Name, dhcp.Role = "tftp", lab.RoleHegel
				dhcp.Args = []string{
					"--keep-in-foreground", "--log-facility=-", "--user=root", "--port=0", "--conf-file=/dev/null", "--enable-tftp",
					"--tftp-root=" + dir,
				}
			case "matchbox":
				data := filepath.Join(dir, "matchbox")
				text, err := os.ReadFile(script)
				if err != nil {
					t.Fatal(err)
				}
				lines := strings.Split(string(text), "\n")
				assets := "http://192.0.2.2:8080/assets/"
				profile := fmt.Sprintf(`{"id": "install", "boot": {"kernel": %q, "initrd": [%q], "args": [%q]}}`,
					assets+"vmlinuz-x86_64", assets+"initramfs-x86_64", strings.Fields(lines[1])[2])
				for file, text := range map[string]string{
					"profiles/install.json": profile, "groups/all.json": `{"id": "all", "profile": "install"}`,
				} {
					path := filepath.Join(data, file)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
						t.Fatal(err)
					}
				}
				start(lab.Process{Name: "matchbox", Role: lab.RoleTink, Path: matchbox, Args: []string{
					"-address=0.0.0.0:8080", "-data-path=" + data, "-assets-path=" + dir,
				}})
			}
			start(dhcp)
			client := machine.Client{
				Lab: l, Machine: m, UserClass: "iPXE", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			}
			// It ends when it has kernel and initramfs, since what it boots has no arguments of Tinkerbell's.
			if err := client.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "parse kernel command line") {
				t.Fatal(err)
			}
		})
	}
}
