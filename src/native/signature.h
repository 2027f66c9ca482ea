// Comparison of a call's inputs with the signature of a specialisation (src/group/signature.h).
#pragma once

#include "group.h"

namespace torchmdla::native {

enum class Strides { compared, ignored };

// Return whether the specialisation is for these inputs. Set the values of all symbols.
bool covers(const Specialisation& specialisation, Inputs inputs, Strides strides,
            Dimensions& symbols);

// Return texts for messages.
std::string signature_text(Inputs inputs);
std::string signature_text(const Specialisation& specialisation);

} // namespace torchmdla::native
