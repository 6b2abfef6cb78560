package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/pkg/frame"
)

// unpack reads a bundle: file names, without the directory, and contents.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for in := tar.NewReader(packed); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(header.Name, "stack-doctor/")
		if header.Typeflag != tar.TypeReg || !ok || strings.Contains(name, "..") {
			t.Errorf("%q of type %c", header.Name, header.Typeflag)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
}

const jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJTM0NSM1QifQ.S3CR3T"

// What hides a secret, and what stays readable of it.
var planted = map[string]string{
	"kernel http://user:S3CR3T@10.30.0.2/vmlinuz":                                               "http://***@10.30.0.2/vmlinuz",
	"http://10.30.0.2/i?X-Amz-Signature=S3CR3T&ok=1#S3CR3T":                                     "http://10.30.0.2/i?***",
	"see http://10.30.0.2/page#S3CR3T":                                                          "http://10.30.0.2/page#***",
	"GET /t/S3CR3T-" + jwt + "/vmlinuz":                                                         "GET /t/***/vmlinuz",
	"param pw S3CR3T":                                                                           "param pw ***",
	"set password S3CR3T":                                                                       "set password ***",
	"console=ttyS0 --password=S3CR3T ds=nocloud;s=http://x/?k=S3CR3T":                           "console=ttyS0 --password=*** ds=nocloud;s=http://x/?***",
	"Set-Cookie: session=S3CR3T; path=/S3CR3T":                                                  "Set-Cookie: ***",
	"Authorization: Bearer S3CR3T":                                                              "Authorization: ***",
	`{"token":"S3CR3T","path":"/boots"}`:                                                        `{"token":"***","path":"/boots"}`,
	"STACK_SECRET=UzNDUjNULU4=":                                                                 "STACK_SECRET=***",
	"kubeadm join 10.30.0.2 abcdef.0123456789abcdef":                                            "kubeadm join 10.30.0.2 ***",
	"-----BEGIN EC PRIVATE KEY-----\nUzNDUjNU\n-----END EC PRIVATE KEY-----":                    "***",
	"cookie of the agent " + base64.StdEncoding.EncodeToString([]byte("S3CR3T and 0123456789")): "cookie of the agent ***",
	// What is none stays.
	"sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08": "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
	"52:54:00:5e:00:01 2001:db8::2 /52:54:00:5e:00:01/auto.ipxe":              "52:54:00:5e:00:01 2001:db8::2 /52:54:00:5e:00:01/auto.ipxe",
	"line 2 of the script: the kernel http://192.0.2.2:8080/vmlinuz-x86_64":   "http://192.0.2.2:8080/vmlinuz-x86_64",
}

func TestSecretsAreTakenOut(t *testing.T) {
	for text, want := range planted {
		var r redactor
		got := string(r.text([]byte(text)))
		if !strings.Contains(got, want) || hides(got) {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
		if changed := got != text; changed != (len(r.counts) > 0) {
			t.Errorf("%q becomes %q, and counted is %v", text, got, r.counts)
		}
	}
}

// hides tells whether a secret is still there, as it is or in base64.
func hides(text string) bool {
	for _, secret := range []string{"S3CR3T", "UzNDUjNU", "UzNDUjN", "M0NSM1Q", "abcdef.0123"} {
		if strings.Contains(text, secret) {
			return true
		}
	}
	return false
}

// offered is a frame with an OFFER that hides secrets wherever one has room for them.
func offered(m *dhcpv4.DHCPv4, own frame.MAC) []byte {
	reply, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer),
		dhcpv4.WithYourIP(net.IPv4(10, 30, 0, 100)),
		dhcpv4.WithOption(dhcpv4.OptBootFileName("http://u:S3CR3T@10.30.0.2/a?k=S3CR3T#S3CR3T")),
		dhcpv4.WithGeneric(dhcpv4.OptionVendorSpecificInformation, []byte("\x01\x06S3CR3T")),
		dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(90), []byte("S3CR3T")),
		dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(209), []byte("http://x/"+strings.Repeat("a", 300)+"S3CR3T")),
		func(d *dhcpv4.DHCPv4) { d.BootFileName = "tftp://x/?S3CR3T" })
	if err != nil {
		panic(err)
	}
	return framed(reply.ToBytes(), own, 67, 68)
}

func framed(payload []byte, from frame.MAC, source, destination uint16) []byte {
	b := append(make([]byte, frame.HeaderLen), payload...)
	h := frame.Header{
		SrcMAC: from, DstMAC: frame.Broadcast, Src: [4]byte{10, 30, 0, 2}, Dst: [4]byte{255, 255, 255, 255},
		SrcPort: source, DstPort: destination,
	}
	h.Put(b)
	return b
}

func TestBundle(t *testing.T) {
	dir := t.TempDir()
	own, server := frame.MAC{2, 0, 0, 0, 0, 9}, frame.MAC{2, 0, 0, 0, 0, 2}
	mine, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 0, 0, 0, 0, 1})
	if err != nil {
		t.Fatal(err)
	}
	others, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 0, 0, 0, 0, 0x77})
	if err != nil {
		t.Fatal(err)
	}
	r := NewRecorder()
	r.See(true, framed(mine.ToBytes(), own, 68, 67))
	r.See(false, offered(mine, server))
	r.See(false, offered(others, server))
	data := framed([]byte("\x00\x03\x00\x01S3CR3T"), server, 69, 2000)
	copy(data, own[:])
	r.See(false, data)
	r.See(false, framed([]byte("S3CR3T of another machine"), server, 69, 2000))
	logs := filepath.Join(dir, "smee.log")
	packed := filepath.Join(dir, "old.log.gz")
	var text []string
	for line := range planted {
		text = append(text, line)
	}
	if err := os.WriteFile(logs, []byte(strings.Join(text, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(packed, []byte("\x1f\x8bS3CR3T"), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "b.tgz")
	c := Content{
		Report: map[string]string{"text": "a \"b\" <c> http://x/?a=S3CR3T&b=S3CR3T"}, Text: "http://u:S3CR3T@x/",
		Settings: map[string]string{"ca": "/etc/ca.pem", "token": "S3CR3T"}, Versions: "v1", Logs: []string{logs, packed}, Frames: r,
	}
	if err := Write(path, c); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Error(err, info.Mode())
	}
	files := unpack(t, path)
	for name, text := range files {
		if hides(text) {
			t.Errorf("%s has a secret: %q", name, text)
		}
	}
	for name, says := range map[string]string{
		"report.json": "http://x/?***", "report.txt": "http://***@x/", "settings.txt": "ca=/etc/ca.pem", "versions.txt": "v1",
		"logs/1-smee.log": "kubeadm join", "taken-out.txt": "logs/2-old.log.gz",
	} {
		if !strings.Contains(files[name], says) {
			t.Errorf("%s does not say %q: %q", name, says, files[name])
		}
	}
	// The DISCOVER, its OFFER and the header of the data, and no frame of anybody else's.
	pcap, frames := []byte(files["frames.pcap"]), 0
	for b := pcap[24:]; len(b) > 16; frames++ {
		b = b[16+binary.LittleEndian.Uint32(b[8:]):]
	}
	if frames != 3 || !bytes.Contains(pcap, []byte("10.30.0.2/a?")) {
		t.Errorf("%d frames: %q", frames, pcap)
	}
	if err := Write(path, c); err == nil {
		t.Error("it replaces a file")
	}
	if err := os.Symlink(logs, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "link"), c); err == nil {
		t.Error("it follows a link")
	}
}

func FuzzSee(f *testing.F) {
	mine, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 0, 0, 0, 0, 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(framed(mine.ToBytes(), frame.MAC{2, 0, 0, 0, 0, 9}, 68, 67))
	f.Add(offered(mine, frame.MAC{2, 0, 0, 0, 0, 9}))
	r := NewRecorder()
	f.Fuzz(func(_ *testing.T, b []byte) { r.See(true, b) })
}
