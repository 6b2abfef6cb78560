// Package journey takes machines from power-on to the end of an installation through the pod, and says how far each
// came: step by step, with times, and with the reason where one failed.
//
// A step counts when it was seen outside of the machine: the wire (up to the initramfs), Smee's log (syslog),
// or the answer itself, compared with what the lab gave the services (metadata, workflow, artifact).
package journey

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// Step names, in the order in which a machine passes them.
const (
	StepInterface = "interface"
	StepDiscover  = "discover"
	StepOffer     = "offer"
	StepAck       = "ack"
	StepTFTP      = "tftp"
	StepScript    = "script"
	StepKernel    = "kernel"
	StepInitramfs = "initramfs"
	StepSyslog    = "syslog"
	StepMetadata  = "metadata"
	StepGRPC      = "grpc"
	StepArtifact  = "artifact"
	StepWorkflow  = "workflow" // with the modern Tinkerbell
	StepPowerOff  = "power-off"

	// In place of DISCOVER, OFFER and ACK where a machine has IPv6 alone.
	StepSolicit   = "solicit"
	StepAdvertise = "advertise"
	StepReply     = "reply"

	// In place of TFTP where firmware boots by HTTP.
	StepHTTPBoot = "http-boot"
)

// stage is what is known about a step beforehand.
type stage struct {
	name     string
	firmware time.Duration // how long nothing may move in it under emulation
	client   time.Duration // the same for a machine in Go
	missing  string        // what it means when it does not come
	programs []string      // whose fault that may be
	alone    bool          // the machine computes alone: what it prints is a sign that it gets on
}

var stages = []stage{
	{
		StepInterface, 10 * time.Second, 10 * time.Second, "the pod has no listener on the provisioning LAN",
		[]string{lab.BroadcastInit}, false,
	},
	{
		StepDiscover, 90 * time.Second, 10 * time.Second,
		"the machine sent no DISCOVER: its firmware did not get that far", nil, true,
	},
	{
		StepOffer, 30 * time.Second, 10 * time.Second, "no OFFER came to the machine: relay or Smee is silent",
		[]string{lab.DHCPRelay, lab.Smee}, false,
	},
	{
		StepAck, 30 * time.Second, 10 * time.Second, "no ACK came to the machine: relay or Smee is silent",
		[]string{lab.DHCPRelay, lab.Smee}, false,
	},
	{
		StepTFTP, 60 * time.Second, 15 * time.Second, "no whole file came from 69/udp of the service IP",
		[]string{lab.StackProxy, lab.Smee}, false,
	},
	{
		StepScript, 60 * time.Second, 15 * time.Second, "no iPXE script came from 7171/tcp of the service IP",
		[]string{lab.StackProxy, lab.Smee}, false,
	},
	{
		StepKernel, 60 * time.Second, 15 * time.Second, "no whole kernel came from 8080/tcp of the service IP",
		[]string{lab.StackProxy}, false,
	},
	{
		StepInitramfs, 60 * time.Second, 15 * time.Second, "no whole initramfs came from 8080/tcp of the service IP",
		[]string{lab.StackProxy}, false,
	},
	{
		StepSyslog, 90 * time.Second, 15 * time.Second, "Smee logged no line of this machine from 514/udp",
		[]string{lab.StackProxy, lab.Smee}, true,
	},
	{
		StepMetadata, 45 * time.Second, 15 * time.Second, "no metadata from 50061/tcp of the service IP",
		[]string{lab.StackProxy, lab.Hegel}, false,
	},
	{
		StepGRPC, 45 * time.Second, 15 * time.Second, "no workflow from 42113/tcp of the service IP",
		[]string{lab.StackProxy, lab.Tink}, false,
	},
	{
		StepArtifact, 90 * time.Second, 30 * time.Second, "no whole artifact from 8080/tcp of the service IP",
		[]string{lab.StackProxy, lab.Tink}, false,
	},
	{StepPowerOff, 30 * time.Second, 10 * time.Second, "the machine did not switch itself off", nil, true},
}

// Steps are the names of all steps, in order: those through the classic services, or through the modern Tinkerbell.
func Steps(modern bool) []string {
	var names []string
	for _, stage := range stagesOf("", modern, false) {
		names = append(names, stage.name)
	}
	return names
}

// steps6 are the steps by which a machine of IPv6 gets its address.
var steps6 = map[string]string{StepDiscover: StepSolicit, StepOffer: StepAdvertise, StepAck: StepReply}

// stages6 gives the stages of a machine that has IPv6 alone. Its addresses come from the lab's DHCPv6 server.
func stages6() []stage {
	words := strings.NewReplacer("DISCOVER", "SOLICIT", "OFFER", "ADVERTISE", "ACK", "REPLY",
		"or Smee is", "or DHCPv6 server is")
	own := slices.Clone(stages)
	for i, s := range own {
		if name, ok := steps6[s.name]; ok {
			own[i].name, own[i].missing = name, words.Replace(s.missing)
			if s.programs != nil {
				own[i].programs = []string{lab.DHCPRelay, lab.DHCP6}
			}
		}
	}
	return own
}

// byHTTP has the first file come by HTTP in place of TFTP.
func byHTTP(stages []stage) []stage {
	own := slices.Clone(stages)
	for i, s := range own {
		if s.name == StepTFTP {
			// OVMF asks for the file's length first, and takes its time between the packets.
			own[i].name, own[i].firmware = StepHTTPBoot, 2*s.firmware
			own[i].missing = "no whole boot file came from 7171/tcp of the service IP"
		}
	}
	return own
}

// stagesOf gives the stages of a journey: through Smee, Hegel and what plays Tink Server, or through the modern
// Tinkerbell, which is one binary with other ports, and says how the workflow ended.
func stagesOf(firmware string, modern, ipv6 bool) []stage {
	if ipv6 {
		if firmware == firmwareHTTP {
			return byHTTP(stages6())
		}
		return stages6()
	}
	if !modern {
		return stages
	}
	ports := strings.NewReplacer("7171/tcp", "7080/tcp", "8080/tcp", "7173/tcp", "50061/tcp", "7080/tcp")
	var own []stage
	for _, s := range stages {
		s.missing = ports.Replace(s.missing)
		s.programs = slices.Clone(s.programs)
		for i, program := range s.programs {
			if program == lab.Smee || program == lab.Hegel || program == lab.Tink {
				s.programs[i] = lab.Tinkerbell
			}
		}
		if s.name == StepPowerOff {
			own = append(own, stage{
				StepWorkflow, 30 * time.Second, 20 * time.Second, "the workflow's state is not SUCCESS",
				[]string{lab.Tinkerbell}, false,
			})
		}
		own = append(own, s)
	}
	return own
}

func indexOf(stages []stage, step string) int {
	for i, stage := range stages {
		if stage.name == step {
			return i
		}
	}
	return -1
}

// stepOf says which step a document is.
func stepOf(document, kernel, initramfs string) string {
	document, _, _ = strings.Cut(document, "?")
	switch path.Base(document) {
	case "ipxe.efi":
		return StepHTTPBoot
	case "auto.ipxe":
		return StepScript
	case kernel:
		return StepKernel
	case initramfs:
		return StepInitramfs
	}
	return ""
}
