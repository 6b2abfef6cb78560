package boots

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// The labs of cases. Those of a rack are alone in theirs: what others do there tells of them, too.
var (
	site0 = &set{name: "site", change: withTLS}
	// strayTFTP sends machines to an address that nobody has.
	strayTFTP = &set{name: "stray-tftp", change: func(_ *scene, o *lab.Options) error {
		o.Args[lab.Smee] = append(o.Args[lab.Smee], "-dhcp-tftp-ip", strayIP)
		return nil
	}}
	armLoaders = &set{
		name: "arm-loaders",
		change: func(_ *scene, o *lab.Options) error {
			o.Routes = fmt.Sprintf("preset: classic\nroutes:\n"+
				"- {name: smee-tftp, protocol: tftp, listen: 69, backends: \"%s:69\", optional: true}\n", loaders)
			return nil
		},
		ready: func(_ context.Context, s *scene) error { return s.replaceLoaders("ipxe.efi", "snp.efi") },
	}
	unknownRack = &set{name: "unknown-rack"}
	loaderRack  = &set{name: "loader-rack"}
	kernelRack  = &set{name: "kernel-rack"}
	hungSmee    = &set{name: "hung-smee"}
	deadRelay   = &set{name: "dead-relay", ready: func(_ context.Context, s *scene) error {
		time.Sleep(5 * time.Second) // it has worked before
		return s.Kill(lab.DHCPRelay)
	}}
	// nat hides machines behind the node's address, as externalTrafficPolicy Cluster does.
	nat = &set{name: "nat", ready: func(ctx context.Context, s *scene) error {
		rules := "table ip hides {\n chain post {\n" +
			"type nat hook postrouting priority 90;\n ip saddr %s ip daddr %s masquerade;\n }\n}\n"
		return s.nft(ctx, lab.RoleNode, fmt.Sprintf(rules, lab.LAN.Masked(), lab.Pods.Masked()))
	}}
	grpcSite = &set{name: "grpc", change: func(_ *scene, o *lab.Options) error {
		o.Routes = "preset: classic\nroutes:\n" +
			"- {name: tink, protocol: grpc, listen: 42113, backends: \"tink-server:42113\"}\n"
		return nil
	}}
	// refusing has a DHCP server that offers, and then refuses.
	refusing = &set{
		name: "refusing",
		change: func(_ *scene, o *lab.Options) error {
			o.Without = []string{lab.Smee, lab.Hegel}
			return nil
		},
		ready: func(_ context.Context, s *scene) error { return s.refuse() },
	}
	ipv6Site = &set{name: "ipv6", change: func(_ *scene, o *lab.Options) error {
		o.IPv6 = true
		o.Args[lab.DHCP6] = []string{"--dhcp-ignore=tag:!known"} // as a server that has no pool
		for i := range o.Machines {
			addr := lab.LAN6.Masked().Addr().As16()
			addr[14], addr[15] = 1, byte(16*i)
			o.Machines[i].IP6 = netip.AddrFrom16(addr)
		}
		return nil
	}}
	kubernetes = &set{name: "kubernetes", change: withKubernetes}
)

// strayIP is nobody's.
const strayIP = "192.0.2.99"

// withTLS has Smee's scripts served by TLS, too, with a certificate of an authority that no machine knows.
func withTLS(s *scene, o *lab.Options) error {
	certs := filepath.Join(s.dir, "certs")
	if err := os.MkdirAll(certs, 0o755); err != nil {
		return err
	}
	certificate, key, err := selfSigned(lab.ServiceIP)
	if err != nil {
		return err
	}
	o.Routes = "preset: classic\nroutes:\n- {name: secure, protocol: http, listen: 443, backends: \"smee:7171\", " +
		"tls: {certificates: {certificate: /certs/tls.crt, key: /certs/tls.key}}}\n"
	o.Security = map[string]*lab.Security{lab.StackProxy: {UID: 65532, Mounts: map[string]string{
		"/artifacts": s.artifacts, "/etc/stack-proxy": filepath.Join(s.dir, "routes"), "/certs": certs,
	}}}
	return errors.Join(
		os.WriteFile(filepath.Join(certs, "tls.crt"), certificate, 0o644),
		os.WriteFile(filepath.Join(certs, "tls.key"), key, 0o644),
	)
}

// selfSigned makes a certificate of an address, by RSA as iPXE wants it.
func selfSigned(address netip.Addr) (certificate, key []byte, err error) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: address.String()}, IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{address.AsSlice()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	made, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to make certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)}), nil
}

// refuse starts a DHCP server in Smee's place that answers each DISCOVER with an OFFER, and each REQUEST with a NAK.
func (s *scene) refuse() error {
	var conn net.PacketConn
	err := s.Do(lab.RoleSmee, func() (err error) {
		conn, err = net.ListenPacket("udp4", netip.AddrPortFrom(lab.SmeeIP, 67).String())
		return err
	})
	if err != nil {
		return fmt.Errorf("failed to start DHCP server: %w", err)
	}
	s.closers = append(s.closers, conn)
	go func() { // until close
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			request, err := dhcpv4.FromBytes(slices.Clone(buffer[:n]))
			if err != nil {
				continue
			}
			kind, offered := dhcpv4.MessageTypeOffer, net.IPv4(192, 0, 2, 150)
			if request.MessageType() == dhcpv4.MessageTypeRequest {
				kind, offered = dhcpv4.MessageTypeNak, net.IPv4zero
			}
			reply, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(offered),
				dhcpv4.WithServerIP(lab.ServiceIP.AsSlice()),
				dhcpv4.WithOption(dhcpv4.OptServerIdentifier(lab.ServiceIP.AsSlice())),
				dhcpv4.WithOption(dhcpv4.OptSubnetMask(net.CIDRMask(24, 32))),
				dhcpv4.WithOption(dhcpv4.OptIPAddressLeaseTime(time.Hour)),
				dhcpv4.WithOption(dhcpv4.OptBootFileName("undionly.kpxe")),
				dhcpv4.WithGeneric(dhcpv4.OptionRelayAgentInformation, request.Options.Get(dhcpv4.OptionRelayAgentInformation)))
			if err == nil {
				_, _ = conn.WriteTo(reply.ToBytes(), from)
			}
		}
	}()
	return nil
}
