# Benches. Each builds the programs that it MEASURES, and the BENCH of test/e2e/cmd that it runs with FLAGS, at real-time
# PRIORITY where a client must not wait for what it measures.
BENCHES  := bench-datagram bench-edge bench-failover bench-proxy bench-relay
REALTIME := chrt --rr 10
BENCH     = bench $(@:bench-%=%)
ROWS     := $(BUILD)/bench

.PHONY: $(BENCHES)
$(BENCHES):
	$(if $(MEASURES),CGO_ENABLED=0 go build -trimpath -o $(BIN)/ $(MEASURES:%=./cmd/%))
	@cd test/e2e && go build -o $(BIN)/ ./cmd/$(firstword $(BENCH))
	@$(PRIORITY) $(BIN)/$(BENCH) $(FLAGS)

bench-datagram: ## stack-proxy's TFTP and syslog against nginx, some 6 minutes; needs root, nginx-light, libnginx-mod-stream
bench-datagram: MEASURES = stack-proxy
bench-datagram: PRIORITY = $(REALTIME)
bench-datagram: FLAGS = -proxy $(BIN)/stack-proxy -out $(ROWS)/proxy.json

bench-edge: jwt-test ## stack-proxy's files, TLS and tokens against nginx, some 3 minutes; needs root and nginx-light
bench-edge: MEASURES = stack-proxy
bench-edge: PRIORITY = $(REALTIME)
bench-edge: FLAGS = -proxy $(BIN)/stack-proxy -tokens $(BIN)/jwt.test -out $(ROWS)/edge.json
.PHONY: jwt-test
jwt-test:
	go test -c -trimpath -o $(BIN)/jwt.test ./pkg/edge/jwt

bench-failover: ## how long an address is away when its node goes, what chaos does to it, and keepalived beside it: REPEATS=20, an hour and a half; FAILOVER="-cases drain,killed -short", "-addresses 100 -cases leave", "-cases chaos" or "-cases steady -steady 1h"; needs root and the binaries of e2e-kube
REPEATS  ?= 20
FAILOVER ?= -all
bench-failover: BENCH = bench-failover
bench-failover: MEASURES = stack-lb
bench-failover: FLAGS = -lb $(BIN)/stack-lb -repeats $(REPEATS) -out $(ROWS)/failover.json $(FAILOVER)

bench-proxy: ## stack-proxy's TCP and HTTP against nginx and HAProxy, some 15 minutes; needs root
bench-proxy: MEASURES = stack-proxy
bench-proxy: FLAGS = -proxy $(BIN)/stack-proxy -out $(ROWS)/proxy.json

bench-relay: ## dhcp-relay against ISC dhcrelay, dnsmasq and dhcp-helper, both families, some 11 minutes; needs root
bench-relay: MEASURES = dhcp-relay
bench-relay: FLAGS = -relay $(BIN)/dhcp-relay -peers $(ROWS)/peers -out $(ROWS)/relay.json

# Not programs, or several.
.PHONY: bench-boots bench-boot-journal
bench-boots: ## dhcp-relay and stack-proxy that tell of boots and that do not, some 10 minutes; needs root
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./cmd/dhcp-relay ./cmd/stack-proxy
	@cd test/e2e && go build -o $(BIN)/ ./cmd/bench
	@$(BIN)/bench relay -boots -relay $(BIN)/dhcp-relay -runs 9 -out $(ROWS)/boot.json
	@$(BIN)/bench proxy -boots -proxy $(BIN)/stack-proxy -runs 9 -out $(ROWS)/boot.json
bench-boot-journal: ## what an event of a boot costs the packets' paths, and what the journal of boots takes, two minutes
	BENCH_BOOT=$(abspath $(ROWS))/boot.json go test ./pkg/boot/journal -run '^TestBenchBoot$$' -count 1 -v
