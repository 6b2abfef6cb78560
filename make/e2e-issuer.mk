.PHONY: test-issuer
test-issuer: ## the outer edge's gRPC path with an issuer by ory/fosite, a minute; needs root
	cd test/e2e/issuer && go build -o $(BIN)/issuer .
	cd test/e2e && EDGE_ISSUER=$(BIN)/issuer go test ./edge -run SeedsGRPCPath -count=1
