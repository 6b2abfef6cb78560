package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
)

// Settings that do not go together end the start, each named.
func TestSettings(t *testing.T) {
	for name, test := range map[string]struct {
		set  map[string]string
		want string
	}{
		"no key":        {map[string]string{}, `STACK_BOOTS_LISTEN_ADDRESS=":9072": whoever reaches it would be believed: set STACK_BOOTS_KEY_FILE`},
		"no Kubernetes": {map[string]string{"LISTEN_ADDRESS": "/a", "NAMESPACES": "a"}, `STACK_BOOTS_NAMESPACES=["a"]: goes with STACK_BOOTS_KUBERNETES`},
		"no namespace":  {map[string]string{"LISTEN_ADDRESS": "/a", "KUBERNETES": "true", "NAMESPACES": "a,B"}, `STACK_BOOTS_NAMESPACES="B": no name of a namespace`},
		"no memory":     {map[string]string{"LISTEN_ADDRESS": "/a", "MEMORY": "0"}, "STACK_BOOTS_MEMORY=0: not within 1 and"},
		"no port":       {map[string]string{"LISTEN_ADDRESS": "/a", "ADMIN_ADDRESS": "hello"}, `STACK_BOOTS_ADMIN_ADDRESS="hello": not host:port`},
		"no host":       {map[string]string{"LISTEN_ADDRESS": "/a", "HOSTS": "a.b,http://x/"}, `STACK_BOOTS_HOSTS="http://x/": no name of a host`},
		"no directory":  {map[string]string{"LISTEN_ADDRESS": "/a", "HISTORY_FILE": "/nowhere/h"}, `STACK_BOOTS_HISTORY_FILE="/nowhere/h": /nowhere is no directory`},
		"no Secret":     {map[string]string{"KEY_FILE": "/key", "KEY_SECRET": "a/b"}, `STACK_BOOTS_KEY_SECRET="a/b": no name of a Secret`},
		"several":       {map[string]string{"LISTEN_ADDRESS": "/a", "ADMIN_ADDRESS": "hello", "MEMORY": "0"}, "host:port\n  STACK_BOOTS_MEMORY=0"},
		"all":           {map[string]string{"KEY_FILE": "/key", "KUBERNETES": "true", "NAMESPACES": "a,b", "HOSTS": "boots.example.org"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range test.set {
				t.Setenv(prefix+"_"+variable, value)
			}
			err := daemon.ParseEnv(prefix, &settings{})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Error(err)
			}
		})
	}
}

// What a machine does is a metric and a log line at once.
func TestABootIsToldElsewhere(t *testing.T) {
	registry := admin.NewRegistry(nil)
	var log bytes.Buffer
	v, stop := runViewWith(t, settings{}, slog.New(slog.NewJSONHandler(&log, nil)), registry)
	defer stop()
	begin := time.Now().Add(-5 * time.Second)
	say := func(after time.Duration, e boot.Event, file string) {
		e.At = begin.Add(after).UnixNano()
		boot.SetText(&e, boot.VendorClass, 60, "PXEClient:Arch:00007:UNDI:003000")
		boot.SetText(&e, boot.File, 60, file)
		v.event(&e)
	}
	given, server := boot.Bytes(netip.MustParseAddr("192.0.2.101")), boot.Bytes(netip.MustParseAddr("192.0.2.2"))
	machine := boot.Event{Kind: boot.DHCPRequest, DHCP: 1, MAC: [6]byte{0x52, 0x54, 0, 0x5e, 0, 1}, HasArch: true, Arch: 7}
	say(0, machine, "")
	reply := boot.Event{Kind: boot.DHCPReply, MAC: machine.MAC, Given: given, Server: server, Next: server, Lease: 3600, Endpoint: server, Port: 67}
	reply.DHCP = 2
	say(time.Second/10, reply, "ipxe.efi")
	machine.DHCP, machine.Requested, machine.Server = 3, given, server
	say(time.Second/5, machine, "")
	reply.DHCP = 5
	say(time.Second/4, reply, "ipxe.efi")
	say(time.Second, boot.Event{Kind: boot.TFTP, Outcome: boot.Done, Client: given, Endpoint: server, Port: 69, AskedPort: 69, Bytes: 1000, Expected: 1000}, "ipxe.efi")
	metric := func(name string) (labels string) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == name {
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						labels += l.GetName() + "=" + l.GetValue() + " "
					}
				}
			}
		}
		return labels
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(metric("stack_boot_steps_total"), "step=dhcp"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no step was counted; machines: %s", metric("stack_boot_machines"))
		}
	}
	if got := metric("stack_boot_machines"); !strings.Contains(got, "state=booting") || !strings.Contains(got, "step=loader") {
		t.Errorf("machines: %s", got)
	}
	stop()
	var line struct{ Msg, MAC, Step, Result string }
	if err := json.Unmarshal(log.Bytes()[:bytes.IndexByte(log.Bytes(), '\n')], &line); err != nil {
		t.Fatal(err)
	}
	if line.Msg != "boot step" || line.MAC != "52:54:00:5e:00:01" || line.Step != "dhcp" || line.Result != "ok" {
		t.Errorf("the log says\n%s", log.String())
	}
}
