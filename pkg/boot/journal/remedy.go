package journal

// remedies are what to do about causes, where a cause has no more precise one.
var remedies = map[string]string{
	NoHardware:        "Create a Hardware object with this MAC, or correct the one that is meant.",
	NetbootNotAllowed: "Set allowPXE to true in the netboot section of this interface in the Hardware object.",
	NoServer:          "Look at the setting SERVER and at DNS: the relay knows no address of its DHCP server.",
	ServerSilent: "Look whether Smee runs and gets the requests, and whether its answers can reach the relay's address " +
		"(giaddr).",
	RelayDropped: "See the drop reason in docs/reference/dhcp-relay.md.",
	ReplyDropped: "See the drop reason in docs/reference/dhcp-relay.md.",
	WrongVLAN: "Look at the switch port's VLAN and native VLAN, and for a DHCP relay on the router: only one of the " +
		"two may take this VLAN's broadcasts.",
	OtherDHCPServer: "Find the server at that address, and switch its DHCP off on this network.",
	OfferNotTaken: "See whether the offer reaches the machine (switch port, spanning tree, broadcast flag), and " +
		"whether it has what the firmware needs: an address and a boot file.",
	AddressRefused: "Look for two DHCP servers with one range, or a reservation outside of this network.",
	NoBootFile: "See whether the Hardware object allows netboot, and whether Smee has a loader for this " +
		"architecture.",
	WrongArchitecture: "Have the server give this architecture its own file: see the loaders that Smee has, and the " +
		"architecture and netboot section of the Hardware object.",
	LoaderNotAsked: "See whether the boot file's server is this service's address and can be reached from the machine; " +
		"with Secure Boot on, firmware may refuse the file without asking for it.",
	LoaderStalled: "Look for loss and for a smaller MTU on the way (try a TFTP block size of 1024), and for a firewall " +
		"that closes high UDP ports.",
	LoaderDidNotStart: "Switch Secure Boot off or have the loader signed; see whether the loader is made for this " +
		"machine's architecture; look at its screen.",
	LoaderLoop: "The DHCP server has to tell iPXE (user class iPXE or Tinkerbell) from the firmware, and give it a " +
		"script.",
	ScriptNotAsked: "See whether the script's URL is this service's address and can be reached from the machine.",
	ScriptNotFollowed: "See whether the URLs in the script are this service's address, and whether the machine trusts " +
		"their certificate.",
	NotFound: "Put the file there, or correct its name in the Hardware object, the script or the OS files' " +
		"settings.",
	Forbidden:   "Look at the service's permissions for this machine, and at the route's paths and tokens.",
	RefusedHere: "See the route's limits and paths in the routes file, and the reason in docs/reference/stack-proxy.md.",
	ServerError: "Look at the log of the server that answered, at this time and for this machine.",
	FileTorn:    "Look at the link, at the server's disk, and whether the file was replaced meanwhile.",
	BackendDown: "Look whether the service behind the route runs, and whether its backend in the routes file is right.",
	KernelSilent: "Look at the machine's console (console= in the kernel's arguments), at the driver of its NIC, and " +
		"whether another interface asks for the system's address.",
	SystemSilent: "Look at the machine's console: whether its services start, and whether they know the address of " +
		"metadata and Tink Server.",
	MetadataServerDown: "Look whether Hegel (Tootles) runs, and at the backend of its route.",
	AgentRefused: "Look whether a Workflow names this machine's Hardware object, and whether the agent's worker ID is " +
		"the MAC in it.",
	NoWorkflow: "Look whether a Workflow names this machine's Hardware object, and whether the agent's worker ID is " +
		"the MAC in it.",
}
