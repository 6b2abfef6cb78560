package ipxe

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var from = &url.URL{Scheme: "http", Host: "10.30.0.2", Path: "/boot/auto.ipxe"}

// parse gives what a script loads, a line each.
func parse(t *testing.T, text string) (loads, ends []string) {
	t.Helper()
	s, err := Parse(text, from, map[string]string{"mac": "02:30:00:00:aa:01", "next-server": "10.30.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Commands {
		target, how := c.Open, "open"
		if c.URL != nil {
			target, how = c.URL.String(), "required"
		}
		if c.Optional {
			how = "optional"
		}
		if c.Label != "" {
			how += " behind " + c.Label
		}
		loads = append(loads, strings.TrimSpace(c.Verb+" "+target+" "+how+" "+c.Args))
	}
	return loads, s.Ends
}

func TestScriptsAreRead(t *testing.T) {
	for name, test := range map[string]struct {
		text        string
		loads, ends []string
	}{
		"Smee's": {`#!ipxe
set arch x86_64
set download-url http://192.0.2.2:8080
set kernel vmlinuz-${arch}
set retries:int32 0
:retry_kernel
kernel ${download-url}/${kernel} facility= syslog_host=192.0.2.2 \
grpc_authority=192.0.2.2:42113 && goto download_initrd || iseq ${idx} ${retries} && goto kernel-error || inc idx
:download_initrd
initrd ${download-url}/initramfs-${arch} && goto boot || iseq ${idx} ${retries} && goto kernel-error
:boot
boot
:kernel-error
exit
`, []string{
			"kernel http://192.0.2.2:8080/vmlinuz-x86_64 required facility= syslog_host=192.0.2.2 grpc_authority=192.0.2.2:42113",
			"initrd http://192.0.2.2:8080/initramfs-x86_64 required",
		}, []string{"exit"}},
		"relative and of the machine": {"#!ipxe\nchain ${net0/mac:hexhyp}/next.ipxe\nkernel http://${next-server}/k\ninitrd i.img\n",
			[]string{
				"chain http://10.30.0.2/boot/02-30-00-00-aa-01/next.ipxe required",
				"kernel http://10.30.0.2/k required", "initrd http://10.30.0.2/boot/i.img required",
			}, nil},
		"of what only the machine knows": {"#!ipxe\nchain menu?sn=${serial}\n", []string{"chain menu?sn=${serial} open"}, nil},
		"with a way on":                  {"#!ipxe\nimgfetch a ||\nchain b || echo none\nkernel k || goto fail\n:fail\nshell\n", []string{"imgfetch http://10.30.0.2/boot/a optional", "chain http://10.30.0.2/boot/b optional", "kernel http://10.30.0.2/boot/k required"}, []string{"shell"}},
		"another attempt elsewhere":      {"#!ipxe\nkernel k || goto next\n:next\nkernel l\n", []string{"kernel http://10.30.0.2/boot/k optional", "kernel http://10.30.0.2/boot/l required"}, nil},
		"labels that nobody goes to": {"#!ipxe\nchain h || goto all\n:all\niseq ${platform} efi && set menu efi ||\ngoto deb\n" +
			":test\nkernel t\nboot\n:deb\nkernel k\nboot || goto fail\n:fail\ngoto all\n",
			[]string{"chain http://10.30.0.2/boot/h optional", "kernel http://10.30.0.2/boot/t required behind test", "kernel http://10.30.0.2/boot/k required"}, nil},
		"a menu with a default": {"#!ipxe\nmenu X\nitem --gap -- Y\nitem --key a a A\nitem b B\nchoose --timeout 5 --default b t && goto ${t} || exit\n" +
			":a\nkernel a\nboot\n:b\nkernel b\nboot\n",
			[]string{"kernel http://10.30.0.2/boot/a required behind a", "kernel http://10.30.0.2/boot/b required"}, []string{"choose"}},
		"a menu whose first item is taken": {"#!ipxe\nmenu X\nitem a A\nitem b B\nchoose t && goto ${t}\n:a\nkernel a\nboot\nexit\n:b\nkernel b\n",
			[]string{"kernel http://10.30.0.2/boot/a required", "kernel http://10.30.0.2/boot/b required behind b"}, []string{"choose", "exit"}},
		"a menu that is open":            {"#!ipxe\ngoto ${t}\n:a\nkernel a\n:b\nkernel b\n", []string{"kernel http://10.30.0.2/boot/a required", "kernel http://10.30.0.2/boot/b required"}, nil},
		"a menu whose default is a disk": {"#!ipxe\ngoto disk\n:a\nkernel a\n:disk\nexit\n", []string{"kernel http://10.30.0.2/boot/a required"}, []string{"exit"}},
		"a menu":                         {"#!ipxe\nmenu X\nitem a A\nchoose t && goto ${t}\n:a\nexit\n", nil, []string{"choose", "exit"}},
		"the disk":                       {"#!ipxe\nsanboot --no-describe --drive 0x80 || exit 1\n", nil, []string{"sanboot"}},
	} {
		loads, ends := parse(t, test.text)
		if diff := cmp.Diff(test.loads, loads); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(test.ends, ends); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, text := range []string{"", "<!DOCTYPE html>", "\ufeff#!ipxe\n"} {
		if _, err := Parse(text, from, nil); !errors.Is(err, ErrNoScript) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("#!ipxe\nset a ${b}\nset b ${a}\nkernel ${a}/${b:hexhyp} || goto x\n:x\n")
	f.Add("#!ipxe\nisset ${x} || set x y\nchain --name n ${x} \\\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text, from, map[string]string{"mac": "02:30:00:00:aa:01"})
		for _, c := range s.Commands {
			if err != nil || c.URL != nil && strings.Contains(c.URL.Host, "${") {
				t.Errorf("%v, %+v", err, c)
			}
		}
	})
}
