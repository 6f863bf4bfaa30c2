// Package sdktest holds tests of throttle under SDKs that people put it under, at their newest releases: go-github,
// openai-go, anthropic-sdk-go and the S3 client of aws-sdk-go-v2. It is a module of its own, so that users do not pay for
// what they depend on.
//
// For each of them the tests show that
//
//   - its calls keep a limit that the same work breaks without a Transport;
//   - what was charged by estimate is corrected by the usage that the API reports;
//   - a refusal arrives as the SDK's own error for it, and its retries stand in line and pay like everything else.
package sdktest
