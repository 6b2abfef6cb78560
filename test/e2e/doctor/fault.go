// Package doctor stages the faults of a network and of servers in a lab, and asks stack-doctor, on a laptop without an
// address, what is in the way.
package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables/expr"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// Fault is a fault, and what the doctor has to say of it.
type Fault struct {
	Name string
	// Finding is the name that has to be said, and Names what its sentence has to hold.
	Finding, Names string
	// Mute tells that the doctor is told the stack's address, by which it judges where nobody offers anything.
	Mute bool

	machine string // that it asks as; "": the good one
	arch    string
	laptop  string // that it runs on; "": the one on the LAN
	stage   func(ctx context.Context, s *site) (undo func() error, err error)
}

// The machines that are known, by what is wrong with them.
const (
	good          = "good"
	notAllowed    = "not-allowed"
	noScript      = "no-script"
	noKernel      = "no-kernel"
	tornKernel    = "torn-kernel"
	expired       = "expired"
	strayScript   = "stray-script"
	x86Script     = "x86-script"
	noName        = "no-name"
	wantsTLS      = "wants-tls"
	unknown       = "unknown"        // to Smee
	otherPortTFTP = "other-ports"    // served by the other site's dnsmasq
	routerAtHome  = "router-at-home" // given an address by a home router, too
	rogueServed   = "rogue"
)

// nothing is staged: the machine itself is wrong.
func nothing(context.Context, *site) (func() error, error) { return func() error { return nil }, nil }

// killed has a program of the lab away for a while.
func killed(program string) func(context.Context, *site) (func() error, error) {
	return func(ctx context.Context, s *site) (func() error, error) {
		return func() error { return s.Restart(ctx, program) }, s.Kill(program)
	}
}

// dropped has the switch lose packets.
func dropped(exprs func() []expr.Any) func(context.Context, *site) (func() error, error) {
	return func(_ context.Context, s *site) (func() error, error) { return s.drop(exprs()) }
}

// Faults are all, in the order of a boot.
func Faults() []Fault {
	return []Fault{
		// Those of "make boots" that need no machine.
		{Name: "unknown MAC", Finding: "no-hardware", machine: unknown, Mute: true, stage: nothing},
		{Name: "allowPXE false", Finding: "netboot-not-allowed", machine: notAllowed, stage: nothing},
		{Name: "script is a 404", Finding: "not-found", Names: missingScript, machine: noScript, stage: nothing},
		{Name: "kernel torn", Finding: "file-torn", Names: "/torn", machine: tornKernel, stage: nothing},
		{Name: "Hegel gone", Finding: "no-hegel", Names: lab.ServiceIP.String(), stage: killed(lab.Hegel)},
		{Name: "loader file missing", Finding: "not-found", Names: "undionly.kpxe", arch: "bios", stage: otherLoaders},
		{Name: "wrong architecture", Finding: "wrong-architecture", Names: "ARM64", stage: otherLoaders},
		{Name: "Smee gone", Finding: "server-silent", Names: lab.ServiceIP.String(), Mute: true, stage: killed(lab.Smee)},
		{Name: "relay gone", Finding: "relay-silent", Names: lab.ServiceIP.String(), Mute: true,
			stage: killed(lab.DHCPRelay)},
		{Name: "another station has its address", Finding: "address-conflict", Names: machine(good).IP.String(),
			stage: squatter},
		{Name: "script at an address that is nobody's", Finding: "address-without-owner", Names: "192.0.2.77",
			machine: strayScript, stage: nothing},
		{Name: "x86 kernel for ARM", Finding: "wrong-architecture", Names: "kernel", machine: x86Script, arch: "arm64",
			stage: nothing},
		{Name: "name that does not resolve", Finding: "name-not-resolved", Names: "boot.nowhere", machine: noName,
			stage: nothing},
		{Name: "agent speaks TLS and Tink Server does not", Finding: "tls-refused", Names: ":42113", machine: wantsTLS,
			stage: nothing},
		{Name: "Tink Server gone", Finding: "agent-port", Names: ":42113", stage: killed(lab.Tink)},
		// The network's.
		{Name: "second DHCP server", Finding: "other-dhcp-server", Names: rogueIP.String(), machine: rogueServed,
			stage: nothing},
		{Name: "home router on the VLAN", Finding: "other-dhcp-server", Names: "without boot data", machine: routerAtHome,
			stage: nothing},
		{Name: "MTU hole of 1400", Finding: "mtu-hole", Names: "more than 1400 bytes", stage: dropped(longer(1400))},
		{Name: "69/udp blocked on the way there", Finding: "tftp-silent", Names: "69/udp",
			stage: dropped(udp(destination, 69))},
		{Name: "69/udp blocked on the way back", Finding: "tftp-silent", Names: "69/udp", stage: dropped(udp(source, 69))},
		{Name: "TFTP answers from another port dropped", Finding: "tftp-silent", Names: "other ports",
			machine: otherPortTFTP, stage: dropped(udpFromHighPorts(otherIP))},
		{Name: "address answered by two", Finding: "two-owners", Names: lab.ServiceIP.String(), stage: twin},
		{Name: "wrong VLAN", Finding: "wrong-vlan", Mute: true, laptop: elsewhere, stage: nothing},
		{Name: "proxies not trusted", Finding: "proxies-not-trusted", Names: "192.0.2.", stage: untrusted},
		{Name: "address without owner", Finding: "address-without-owner", Names: lab.ServiceIP.String(), stage: orphaned},
		{Name: "expired certificate", Finding: "certificate-expired", Names: "2001", machine: expired, stage: nothing},
		{Name: "kernel 404", Finding: "not-found", Names: "/vmlinuz-removed", machine: noKernel, stage: nothing},
	}
}

// ID is the fault's name as a file's.
func (f Fault) ID() string {
	return strings.NewReplacer(" ", "-", "/", "-").Replace(strings.ToLower(f.Name))
}

// untrusted has Hegel believe no proxy.
func untrusted(ctx context.Context, s *site) (func() error, error) {
	s.args[lab.Hegel] = []string{"--trusted-proxies", "127.0.0.1/32"}
	return func() error {
		delete(s.args, lab.Hegel)
		return s.Restart(ctx, lab.Hegel)
	}, s.Restart(ctx, lab.Hegel)
}

// certificate is one that ended in 2001.
func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{lab.ServiceIP.AsSlice()},
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// torn serves a file whose end is not there.
func torn(w http.ResponseWriter, r *http.Request) {
	const size = "8388608"
	if strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
		w.Header().Set("Content-Range", "bytes 0-1023/"+size)
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(kernel()[:1024])
		return
	}
	w.Header().Set("Content-Range", "bytes */4194304")
	w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
}

// kernel is the begin of one for x86, and zeros.
func kernel() []byte {
	b := make([]byte, 1<<20)
	copy(b[0x202:], "HdrS")
	return b
}

// Addresses on the LAN beside the lab's.
var (
	rogueIP = netip.MustParseAddr("192.0.2.3")
	homeIP  = netip.MustParseAddr("192.0.2.4")
	otherIP = netip.MustParseAddr("192.0.2.5")
)

const missingScript = "/scripts/ubuntu.ipxe"
