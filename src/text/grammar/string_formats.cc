#include "text/grammar/string_formats.h"

namespace celer::grammar {
namespace {

// Years 0001 to 9999; 29 February in leap years alone.
constexpr char kDate[] =
    "(?:(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3["
    "01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)";
constexpr char kTime[] =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
constexpr char kDuration[] =
    "P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"
    "(?:T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))?|"
    "T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))";
// A label of 63 characters and three of 62, with dots, are 252, within the 253 of a name.
constexpr char kHostname[] =
    "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,60}[A-Za-z0-9])?){0,3}";
constexpr char kIpv4[] =
    "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\\.(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}";
constexpr char kUuid[] = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
// Three of them, with dots, are 62 characters, within the 64 of a mailbox.
constexpr char kAtom[] = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}";
// Without a bound: the length of a whole address or of a name inside a URI is nobody's concern here, and
// needs many states.
constexpr char kDomain[] =
    "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*";
constexpr char kPathChar[] = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

std::string Ipv6() {
  const std::string h = "[0-9a-fA-F]{1,4}", g = "(?::" + h + ")";
  std::string out = h + g + "{7}|" + h + g + "{5}:" + kIpv4;
  // '::' with up to `left` groups before it and `right` after.
  for (int left = 0; left <= 7; ++left) {
    const std::string before =
        left == 0 ? "" : h + (left == 1 ? "" : g + "{" + std::to_string(left - 1) + "}");
    const int right = 7 - left;
    out += "|" + before + "::";
    if (right > 0) out += "(?:" + h + (right == 1 ? "" : g + "{0," + std::to_string(right - 1) + "}") + ")?";
  }
  out += "|::(?:ffff:)?" + std::string(kIpv4);
  return out;
}

std::string Uri() {
  const std::string c = kPathChar;
  return "[A-Za-z][A-Za-z0-9+.-]*:(?://(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})+@)?(?:" +
         std::string(kDomain) + "|\\[(?:" + Ipv6() + ")\\])(?::[0-9]{1,5})?(?:/" + c + "*)*|/?" + c +
         "+(?:/" + c + "*)*)(?:\\?(?:" + c + "|[/?])*)?(?:#(?:" + c + "|[/?])*)?";
}

}  // namespace

std::optional<std::string> FormatPattern(std::string_view format) {
  if (format == "date") return kDate;
  if (format == "time") return kTime;
  if (format == "date-time") return std::string(kDate) + "T" + kTime;
  if (format == "duration") return kDuration;
  if (format == "uuid") return kUuid;
  if (format == "email") return std::string(kAtom) + "(?:\\." + kAtom + "){0,2}@" + kDomain;
  if (format == "hostname") return kHostname;
  if (format == "ipv4") return kIpv4;
  if (format == "ipv6") return Ipv6();
  if (format == "uri") return Uri();
  if (format == "json-pointer") return "(?:/(?:[^~/]|~0|~1)*)*";
  return std::nullopt;
}

std::string FormatNames() {
  return "date, time, date-time, duration, uuid, email, hostname, ipv4, ipv6, uri, json-pointer";
}

}  // namespace celer::grammar
