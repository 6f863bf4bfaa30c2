// Package sdktest holds tests of throttle under the SDKs that it is used with, at their newest releases. It is a module of
// its own, so that the dependencies of the SDKs are not those of throttle.
//
// For every SDK the tests show, in the time of a bubble, that
//
//   - its calls keep a limit that the same work breaks without a Transport, and take no longer than the limit asks;
//   - a rejection arrives as a response or as an error, and how often and how long the SDK retries it;
//   - a call that cannot be sent before its deadline says so;
//   - a response of the server with Retry-After holds back what the SDK would retry sooner;
//   - a call gives its slot back, and a stream keeps it until it ends.
//
// For those that report usage they show that a charge by estimate is corrected by it. Of SDKs that come as one package
// for a hundred services, the part is taken that holds what is tested: it compiles in seconds instead of minutes.
package sdktest
