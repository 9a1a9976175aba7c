# find_package(phalanx) gives the target phalanx::phalanx. Found from where this file is, so the folder may be moved.
get_filename_component(_phalanx_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET phalanx::phalanx)
  add_library(phalanx::phalanx SHARED IMPORTED)
  set_target_properties(phalanx::phalanx PROPERTIES
    IMPORTED_LOCATION "${_phalanx_prefix}/lib/libphalanx.so"
    IMPORTED_SONAME "libphalanx.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_phalanx_prefix}/include")
endif()
set(phalanx_VERSION "@VERSION@")
